package operator

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/stock"
)

// MaxSeen is how many rows one look that no index narrows down goes through, unless Lookup.Most says less.
const MaxSeen = 100_000

// Lookup is where it is known what became of messages and orders.
type Lookup struct {
	Records *dedup.Log
	Group   string
	// DB is a pool on the schema of the log, which is that of the stock tables too. It stays the caller's.
	DB *gorm.DB
	// OrderOf reads the order from a body; nil when the handler is not that of stock: then the stock tables are left out.
	OrderOf func(body []byte) (orderSN string, ok bool)
	// Most bounds how many rows one look goes through that no index narrows down, for an answer that is wanted at once.
	// 0: MaxSeen.
	Most int
}

func (o Lookup) most() int { return cmp.Or(o.Most, MaxSeen) }

// Message is what is known of one identity.
type Message struct {
	// with body and properties; Absent when a reservation names a message that the log does not know
	Row          dedup.Row
	Events       []dedup.Event
	Reservations []stock.Reservation // of its order, or those that it released
	// FiledFor is set when the message stands under a key of rollbackd's own and was asked for by its original one.
	FiledFor string
	// Orders are what it is known to be about.
	Orders []string
	// SentAs is the message in whose place it was ended, EditedFrom that in whose place it was sent; nil: none.
	SentAs, EditedFrom *MessageName
	// Outbox is its row there, nil when there is none.
	Outbox *outbox.Row
}

// Told is the answer to one question.
type Told struct {
	Messages     []Message
	Reservations []stock.Reservation // of the order, when that was asked for
	Unseen       []string            // what the answer may lack, in words
	More         bool                // a look through more rows than Lookup.Most may find more
}

func (t *Told) unseen(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(t.Unseen, text) {
		t.Unseen = append(t.Unseen, text)
	}
}

func (t *Told) has(k dedup.Identity) bool {
	return slices.ContainsFunc(t.Messages, func(m Message) bool { return m.Row.Identity == k })
}

// OfKey tells of every message with this key, under whatever tag ("" means all), and of those that are filed under a
// key of rollbackd's own because of it: conflicts, and what could not be identified.
func (o Lookup) OfKey(ctx context.Context, key, tag string) (Told, error) {
	var t Told
	var rows []dedup.Row
	// A list asks for one status after the other, and a row that moves meanwhile may be in none of them.
	for tries := 0; tries < 3 && len(rows) == 0; tries++ {
		var err error
		rows, _, err = o.Records.List(ctx, dedup.Filter{
			Group: o.Group, Keys: []string{key}, Tag: tag, Limit: dedup.MaxListed,
		})
		if err != nil {
			return t, err
		}
	}
	for _, row := range rows {
		if err := o.add(ctx, &t, row.Identity, ""); err != nil {
			return t, err
		}
	}
	for _, filed := range []string{wire.TagConflict, wire.TagUnidentified} {
		keys, seen, err := o.Records.Mentioning(ctx, o.Group, filed, wire.FiledNote(tag, key), o.most())
		if err != nil {
			return t, err
		}
		if !seen.All {
			t.More = true
			t.unseen("of what is filed under %s, only %d rows and events were looked at", filed, seen.Seen)
		}
		for _, k := range keys {
			if err := o.add(ctx, &t, k, key); err != nil {
				return t, err
			}
		}
	}
	if err := o.outboxOf(ctx, &t, tag, key); err != nil {
		return t, err
	}
	return t, o.linkEdits(ctx, &t)
}

// OfOrder tells of every message that is known to be about an order: those that its reservations name, those whose key
// is the order's number, and those whose body says so, as far as the log keeps bodies.
func (o Lookup) OfOrder(ctx context.Context, orderSN string) (Told, error) {
	var t Told
	if o.OrderOf == nil {
		return t, errors.New("orders are known to ROLLBACKD_HANDLER=stock only")
	}
	var err error
	if t.Reservations, err = stock.ReservationsOf(ctx, o.DB.WithContext(ctx), orderSN); err != nil {
		return t, err
	}
	for _, r := range t.Reservations {
		if k := (dedup.Identity{Group: o.Group, Tag: r.Tag, Key: r.Key}); r.Named && k.Validate() == nil {
			if err := o.add(ctx, &t, k, ""); err != nil {
				return t, err
			}
		}
	}
	if (dedup.Identity{Group: o.Group, Tag: "t", Key: orderSN}).Validate() == nil {
		byKey, err := o.OfKey(ctx, orderSN, "")
		if err != nil {
			return t, err
		}
		for _, m := range byKey.Messages {
			if !t.has(m.Row.Identity) {
				t.Messages = append(t.Messages, m)
			}
		}
	}
	if err := o.searchBodies(ctx, &t, orderSN); err != nil {
		return t, err
	}
	if err := o.linkEdits(ctx, &t); err != nil {
		return t, err
	}
	t.unseen("applied messages keep no body: one that found everything given back already, under a key that is not the " +
		"order's number, is not found; nor is a message that no daemon has taken yet")
	return t, nil
}

// searchBodies finds the messages whose kept body is about the order, or, where it cannot be read, holds its number.
func (o Lookup) searchBodies(ctx context.Context, t *Told, orderSN string) error {
	states := []dedup.Status{dedup.Processing, dedup.Failed, dedup.Dead, dedup.Discarded}
	words := [][]byte{[]byte(orderSN), []byte(`\`)} // an escape may stand for any character
	seen, err := o.Records.Holding(ctx, o.Group, states, words, o.most(), func(row dedup.Row) error {
		order, ok := o.OrderOf(row.Body)
		about := ok && order == orderSN || !ok && bytes.Contains(row.Body, []byte(strconv.Quote(orderSN)))
		if !about || t.has(row.Identity) {
			return nil
		}
		return o.add(ctx, t, row.Identity, "")
	})
	if err == nil && !seen.All {
		t.More = true
		t.unseen("of the messages that are not applied, only the latest %d of each status were looked into", o.most())
	}
	return err
}

// add gathers one identity.
func (o Lookup) add(ctx context.Context, t *Told, k dedup.Identity, filedFor string) error {
	if t.has(k) {
		return nil
	}
	m := Message{FiledFor: filedFor}
	var err error
	if m.Row, err = o.Records.Read(ctx, k); err != nil {
		return err
	}
	if m.Events, err = o.Records.Events(ctx, k); err != nil {
		return err
	}
	if o.OrderOf != nil {
		err := o.addReservations(ctx, t, &m)
		if mysqldb.NoTable(err) { // the messages are a program's of its own, perhaps
			t.unseen("there are no reservations, because this schema has no table of them")
		} else if err != nil {
			return err
		}
	}
	t.Messages = append(t.Messages, m)
	return nil
}

// addReservations finds the reservations of the message's order. A body says which that is; without one the key may be
// the order's number; and else those are searched that name the message.
func (o Lookup) addReservations(ctx context.Context, t *Told, m *Message) error {
	mine := func(r stock.Reservation) bool { return r.Named && r.Tag == m.Row.Tag && r.Key == m.Row.Key }
	if slices.ContainsFunc(t.Reservations, mine) {
		m.Reservations, m.Orders = t.Reservations, []string{t.Reservations[0].OrderSN}
		return nil
	}
	order, ok := o.OrderOf(m.Row.Body)
	if !ok {
		order = m.Row.Key
	}
	rows, err := stock.ReservationsOf(ctx, o.DB.WithContext(ctx), order)
	if err != nil {
		return err
	}
	if ok || slices.ContainsFunc(rows, mine) {
		m.Reservations, m.Orders = rows, []string{order}
		return nil
	}
	if m.Row.Status != dedup.Success && m.Row.Status != dedup.Absent {
		return nil // it released nothing
	}
	return o.searchReservations(ctx, t, m, mine)
}

func (o Lookup) searchReservations(ctx context.Context, t *Told, m *Message, mine func(stock.Reservation) bool) error {
	page := min(5000, o.most())
	var last stock.Reservation
	for seen := 0; seen < o.most(); seen += page {
		rows, err := stock.Reservations(ctx, o.DB.WithContext(ctx), last, page)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if mine(r) {
				m.Reservations = append(m.Reservations, r)
				if !slices.Contains(m.Orders, r.OrderSN) {
					m.Orders = append(m.Orders, r.OrderSN)
				}
			}
		}
		if len(rows) < page || len(m.Reservations) > 0 && m.Orders[0] != rows[len(rows)-1].OrderSN {
			return nil
		}
		last = rows[len(rows)-1]
	}
	if len(m.Reservations) == 0 {
		t.More = true
		t.unseen("which reservations it released: the log keeps no body of applied messages, and of the reservations only "+
			"the first %d were searched; --order SN looks at an order's own", o.most())
	}
	return nil
}

// mostGroups is how many groups are named; where there are as many, nothing is said.
const mostGroups = 20

// UnknownGroup says that the log has no row of the group, and which groups it has: the name may be misspelt. It is ""
// where there is a row, and in a log without any row, which is new.
func (o Lookup) UnknownGroup(ctx context.Context) (string, error) {
	groups, err := o.Records.Groups(ctx, mostGroups)
	if err != nil || len(groups) == 0 || len(groups) == mostGroups || slices.Contains(groups, o.Group) {
		return "", err
	}
	return screen.Printable(fmt.Sprintf("no group named %s is in %s; there are: %s; a new one is there from its first "+
		"message on", o.Group, o.Records.Options().Table, strings.Join(groups, ", "))), nil
}
