package outbox

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// Rows is what a person does with an outbox, and what is told of it. It reads without locks, and a bounded part at a
// time. The pool is connected to the schema of the outbox; where that has none, every method says [ErrNoTable].
type Rows struct{ DB *sql.DB }

// Errors that errors.Is tells.
var (
	ErrNoTable = errors.New("this schema has no outbox, or this account may not read it")
	ErrCursor  = errors.New("this does not say where a list of the outbox ended")
)

// State is how a row stands.
type State string

// The states. Each row has one of them.
const (
	Waiting State = "waiting" // for its time
	Due     State = "due"     // to be sent now, or a relay has it in hand
	Refused State = "refused" // due, and RabbitMQ did not take it; it is tried again
	Parked  State = "parked"  // not sent until a person says so
)

// States are all of them.
func States() []State { return []State{Waiting, Due, Refused, Parked} }

// Row is a message in the outbox. The names of its JSON form are stable.
type Row struct {
	Tag   string `json:"tag"`
	Key   string `json:"key"`
	State State  `json:"state"`
	// PutAt and what follows are by the database's clock.
	PutAt time.Time `json:"put_at"`
	DueAt time.Time `json:"due_at"`
	// NextAt is when a relay looks at it next: the end of a pause, or of a claim. Zero when it is parked.
	NextAt time.Time `json:"next_at,omitzero"`
	// Owner is the claim under which it was sent, perhaps; "": surely nobody has sent it.
	Owner      string    `json:"owner,omitempty"`
	Tries      int       `json:"tries"`              // how often RabbitMQ did not take it
	FailedAt   time.Time `json:"failed_at,omitzero"` // since when, moved on while nobody tried
	ParkedAt   time.Time `json:"parked_at,omitzero"`
	Reason     string    `json:"reason,omitempty"`
	Exchange   *string   `json:"exchange,omitempty"` // nil: the relay's
	RoutingKey *string   `json:"routing_key,omitempty"`

	// Of Show alone.
	ContentType string          `json:"content_type,omitempty"`
	Headers     json.RawMessage `json:"headers,omitempty"` // as they were written, which may be no JSON
	Body        []byte          `json:"-"`
	Size        int64           `json:"size,omitempty"` // of the body
}

// at is what a time in a Filter is compared with.
func (r Row) at() time.Time {
	switch {
	case !r.ParkedAt.IsZero():
		return r.ParkedAt
	case !r.FailedAt.IsZero():
		return r.FailedAt
	}
	return r.PutAt
}

// Filter chooses rows. A zero condition always holds. The names of its JSON form are stable.
type Filter struct {
	State State    `json:"state,omitempty"`
	Tag   string   `json:"tag,omitempty"`
	Keys  []string `json:"keys,omitempty"` // MaxKeys at most
	// Since and Until bound since when it is parked, or not taken, or waits in the outbox: at or after, and before.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

// MaxKeys bounds the keys of a Filter, MaxListed a page.
const (
	MaxKeys   = 1000
	MaxListed = 1000
)

// MostCounted is up to how many rows a Survey counts of each kind.
const MostCounted = 10_000

// Check says what is wrong with it.
func (f Filter) Check() error {
	switch f.State {
	case "", Waiting, Due, Refused, Parked:
	default:
		return fmt.Errorf("outbox: a state %q; there are %v", f.State, States())
	}
	if len(f.Keys) > MaxKeys {
		return fmt.Errorf("outbox: %d keys, at most %d", len(f.Keys), MaxKeys)
	}
	return nil
}

func (f Filter) takes(r Row) bool {
	return (f.State == "" || f.State == r.State) && (f.Tag == "" || f.Tag == r.Tag) &&
		(f.Since.IsZero() || !r.at().Before(f.Since)) && (f.Until.IsZero() || r.at().Before(f.Until))
}

// soon is how long after now the next_at of a row may be that is due: a pause or a lease is shorter.
const soon = "UTC_TIMESTAMP(6) + INTERVAL 10 MINUTE"

// span is where the index next_at has the rows of a state.
func (f Filter) span() string {
	switch f.State {
	case Parked:
		return "next_at >= '" + never + "'"
	case Waiting:
		return "next_at > UTC_TIMESTAMP(6) AND next_at < '" + never + "'"
	case Due, Refused:
		return "next_at <= " + soon
	}
	return "next_at <= '" + never + "'" // all of them, as a range of the index
}

const columns = "msg_tag, msg_key, CASE WHEN parked_at IS NOT NULL THEN 'parked' WHEN due_at > UTC_TIMESTAMP(6) THEN " +
	"'waiting' WHEN failed_at IS NOT NULL THEN 'refused' ELSE 'due' END, CAST(put_at AS CHAR), CAST(due_at AS CHAR), " +
	"CAST(next_at AS CHAR), COALESCE(owner, ''), tries, CAST(failed_at AS CHAR), CAST(parked_at AS CHAR), " +
	"COALESCE(reason, ''), exchange, routing_key"

// scanRow reads columns, and what else is asked for.
func scanRow(rows *sql.Rows, more func(*Row) []any) (r Row, err error) {
	var times [5]sql.NullString
	into := []any{&r.Tag, &r.Key, &r.State, &times[0], &times[1], &times[2], &r.Owner, &r.Tries, &times[3], &times[4],
		&r.Reason, &r.Exchange, &r.RoutingKey}
	if more != nil {
		into = append(into, more(&r)...)
	}
	err = rows.Scan(into...)
	for i, at := range []*time.Time{&r.PutAt, &r.DueAt, &r.NextAt, &r.FailedAt, &r.ParkedAt} {
		*at, _ = time.Parse(timeForm, times[i].String) // what is no time, as '0000-00-00', is zero
	}
	return r, err
}

const timeForm = "2006-01-02 15:04:05.000000"

// asked is an error of a statement over the outbox.
func asked(what string, err error) error {
	if mysqldb.NoTable(err) || mysqldb.Denied(err) {
		err = fmt.Errorf("%w: %w", ErrNoTable, err)
	}
	return fmt.Errorf("outbox: %s: %w", what, err)
}

// List is a page of rows without their bodies, in the order in which relays look at them. It looks at 10,000 rows at
// most, so it may be shorter than limit although there are more: next is "" after the last, else the after of the next
// page. With keys there is one page.
func (r Rows) List(ctx context.Context, f Filter, after string, limit int) (page []Row, next string, err error) {
	if err := f.Check(); err != nil {
		return nil, "", err
	}
	if limit < 1 || limit > MaxListed {
		return nil, "", fmt.Errorf("outbox: a page of %d rows, want 1 to %d", limit, MaxListed)
	}
	if len(f.Keys) > 0 {
		page, err = r.ofKeys(ctx, f, columns, nil)
		return page, "", err
	}
	where, args := f.span(), []any(nil)
	if after != "" {
		at, tag, key, err := readCursor(after)
		if err != nil {
			return nil, "", err
		}
		where += " AND (next_at > ? OR next_at = ? AND msg_tag > ? OR next_at = ? AND msg_tag = ? AND msg_key > ?)"
		args = append(args, at, at, tag, at, tag, key)
	}
	through := limit + 1
	if f.Tag != "" || !f.Since.IsZero() || !f.Until.IsZero() || f.State == Due || f.State == Refused {
		through = MostCounted
	}
	all, err := mysqldb.List(ctx, r.DB, func(rows *sql.Rows) (Row, error) { return scanRow(rows, nil) },
		"SELECT "+columns+" FROM rollbackd_outbox FORCE INDEX (next_at) WHERE "+where+
			" ORDER BY next_at, msg_tag, msg_key LIMIT ?", append(args, through)...)
	if err != nil {
		return nil, "", asked("list", err)
	}
	for i, one := range all {
		switch {
		case !f.takes(one):
		case len(page) == limit:
			return shown(page), next, nil
		default:
			page = append(page, one)
		}
		if next = cursor(one); i == len(all)-1 && len(all) < through {
			next = ""
		}
	}
	return shown(page), next, nil
}

// shown are rows with times that mean something.
func shown(page []Row) []Row {
	for i := range page {
		if page[i].State == Parked {
			page[i].NextAt = time.Time{}
		}
	}
	return page
}

func cursor(r Row) string {
	text := r.NextAt.Format(timeForm) + "\x00" + fmt.Sprint(len(r.Tag)) + "\x00" + r.Tag + r.Key
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func readCursor(text string) (at string, tag, key []byte, err error) {
	said, err := base64.RawURLEncoding.DecodeString(text)
	at, rest, _ := strings.Cut(string(said), "\x00")
	size, rest, _ := strings.Cut(rest, "\x00")
	var n int
	if _, bad := fmt.Sscan(size, &n); err != nil || bad != nil || n < 0 || n > len(rest) {
		return "", nil, nil, fmt.Errorf("outbox: %w: %q", ErrCursor, text)
	}
	if _, bad := time.Parse(timeForm, at); bad != nil {
		return "", nil, nil, fmt.Errorf("outbox: %w: %q", ErrCursor, text)
	}
	return at, []byte(rest[:n]), []byte(rest[n:]), nil
}

// Show is all that the outbox has of the messages with a key, of all tags when tag is "".
func (r Rows) Show(ctx context.Context, tag, key string) ([]Row, error) {
	return r.ofKeys(ctx, Filter{Tag: tag, Keys: []string{key}}, columns+", COALESCE(content_type, ''), headers, "+
		"LENGTH(body), IF(LENGTH(body) > "+fmt.Sprint(MaxBody)+", '', body)",
		func(r *Row) []any { return []any{&r.ContentType, (*[]byte)(&r.Headers), &r.Size, &r.Body} })
}

// ofKeys reads rows through the primary key.
func (r Rows) ofKeys(ctx context.Context, f Filter, what string, more func(*Row) []any) ([]Row, error) {
	tags := []string{f.Tag}
	if f.Tag == "" {
		var err error
		if tags, err = r.tags(ctx); err != nil {
			return nil, err
		}
	}
	var page []Row
	for _, tag := range tags {
		ids := make([]id, len(f.Keys))
		for i, key := range f.Keys {
			ids[i] = id{tag, key}
		}
		where, args := named(ids)
		all, err := mysqldb.List(ctx, r.DB, func(rows *sql.Rows) (Row, error) { return scanRow(rows, more) },
			"SELECT "+what+" FROM "+byKey+" WHERE "+where+" ORDER BY msg_tag, msg_key", args...)
		if err != nil {
			return nil, asked("look for keys", err)
		}
		for _, one := range all {
			if f.takes(one) {
				page = append(page, one)
			}
		}
	}
	return shown(page), nil
}

type id struct{ Tag, Key string }

// named is a condition that holds for these rows.
func named(ids []id) (where string, args []any) {
	for _, one := range ids {
		args = append(args, []byte(one.Tag), []byte(one.Key))
	}
	return mysqldb.Pairs("msg_tag", "msg_key", len(ids)), args
}

// tags are those in the outbox, 100 at most: one look into the primary key for each.
func (r Rows) tags(ctx context.Context) (all []string, err error) {
	for last := ""; len(all) < 100; all = append(all, last) {
		err := r.DB.QueryRowContext(ctx, "SELECT msg_tag FROM rollbackd_outbox FORCE INDEX (PRIMARY) WHERE msg_tag > ? "+
			"ORDER BY msg_tag LIMIT 1", []byte(last)).Scan(&last)
		if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if err != nil {
			return nil, asked("look for tags", err)
		}
	}
	return append([]string{""}, all...), nil // somebody may have written a row without a tag
}

// Survey is how an outbox stands. The names of its JSON form are stable.
type Survey struct {
	// Waiting and what follows count rows, MostCounted at most of those that wait, are due, and are parked.
	Waiting int `json:"waiting"`
	Due     int `json:"due"`
	Refused int `json:"refused"`
	Parked  int `json:"parked"`
	// More: there are more than were counted.
	More bool `json:"more,omitempty"`
	// OldestDue is when that row came due which is due for the longest time, refused or not; zero: none is. Lag is for
	// how long, by the database's clock.
	OldestDue time.Time     `json:"oldest_due,omitzero"`
	Lag       time.Duration `json:"-"`
	// OldestParked is since when a row is parked.
	OldestParked time.Time `json:"oldest_parked,omitzero"`
}

// Survey counts what waits, is due, refused and parked, in one statement that looks at a bounded number of rows.
func (r Rows) Survey(ctx context.Context) (s Survey, err error) {
	some := func(what, where string) string {
		return fmt.Sprintf("(SELECT %s FROM rollbackd_outbox FORCE INDEX (next_at) WHERE %s ORDER BY next_at LIMIT %d) t",
			what, where, MostCounted)
	}
	var due, parked sql.NullString
	var lag sql.NullInt64
	var near, far int
	err = r.DB.QueryRowContext(ctx, "SELECT d.n, COALESCE(d.plain, 0), COALESCE(d.refused, 0), CAST(d.oldest AS CHAR), "+
		"TIMESTAMPDIFF(MICROSECOND, d.oldest, UTC_TIMESTAMP(6)), w.n, w.later, p.n, CAST(p.oldest AS CHAR) FROM "+
		"(SELECT COUNT(*) n, SUM(due_at <= UTC_TIMESTAMP(6) AND failed_at IS NULL) plain, "+
		"SUM(due_at <= UTC_TIMESTAMP(6) AND failed_at IS NOT NULL) refused, "+
		"MIN(IF(due_at <= UTC_TIMESTAMP(6), due_at, NULL)) oldest FROM "+
		some("due_at, failed_at", Filter{State: Due}.span())+") d, "+
		"(SELECT COUNT(*) n, COALESCE(SUM(due_at > UTC_TIMESTAMP(6)), 0) later FROM "+
		some("due_at", Filter{State: Waiting}.span())+") w, "+
		"(SELECT COUNT(parked_at) n, MIN(parked_at) oldest FROM "+some("parked_at", Filter{State: Parked}.span())+") p",
	).Scan(&near, &s.Due, &s.Refused, &due, &lag, &far, &s.Waiting, &s.Parked, &parked)
	if err != nil {
		return s, asked("survey", err)
	}
	s.More = max(near, far, s.Parked) == MostCounted
	s.OldestDue, _ = time.Parse(timeForm, due.String)
	s.OldestParked, _ = time.Parse(timeForm, parked.String)
	s.Lag = time.Duration(lag.Int64) * time.Microsecond
	return s, nil
}
