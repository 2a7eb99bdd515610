package operator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/outbox"
)

// Query is a SELECT of a user's that names the messages which should have come, some at a time. It gives five columns:
// msg_tag and msg_key; body, byte for byte as the service sends it, and created_at, when it did, each NULL where that
// is not known; and after, a number from 0 on or a text, which grows from row to row.
type Query struct {
	Text string
	// Params are what each ? stands for: "after" of the last row, at first an empty text, or "limit", how many rows it may
	// give.
	Params []string
}

var queryColumns = []string{"msg_tag", "msg_key", "body", "created_at", "after"}

// where is where a message is that should have come.
type where int

const (
	whereUnfit where = iota
	whereApplied
	whereOtherBody
	whereDiscarded
	whereOutbox
	whereProcessing
	whereFailed
	wherePut
	whereTooOld
	whereDead
	whereParked
	whereNotSeen
)

// Found are the messages in one place. The names of its JSON form are stable.
type Found struct {
	Where string `json:"where"`
	Means string `json:"means"`
	// Open: somebody has to do something about them.
	Open  bool      `json:"open"`
	Count int       `json:"count"`
	First []Awaited `json:"first,omitempty"` // none of the applied
}

var places = [...]Found{
	whereUnfit:      {Where: "unfit", Means: "no daemon would take it, or the SELECT names it twice", Open: true},
	whereApplied:    {Where: "applied", Means: "success in the log"},
	whereOtherBody:  {Where: "other_body", Means: "success in the log, with another body than the SELECT gives"},
	whereDiscarded:  {Where: "discarded", Means: "ended by a person"},
	whereOutbox:     {Where: "outbox", Means: "waits in the outbox, or is tried again from there"},
	whereProcessing: {Where: "processing", Means: "in the hands of a daemon, or was when that died"},
	whereFailed:     {Where: "failed", Means: "failed, and is tried again"},
	wherePut:        {Where: "put", Means: "put into the outbox now"},
	whereTooOld:     {Where: "too_old", Means: "older than the log remembers: it may have been applied"},
	whereDead:       {Where: "dead", Means: "has a dead letter", Open: true},
	whereParked:     {Where: "parked", Means: "parked in the outbox: nobody sends it", Open: true},
	whereNotSeen: {Where: "not_seen", Means: "unknown to log and outbox; a queue cannot be asked for it, nor a daemon",
		Open: true},
}

var whereStatus = map[dedup.Status]where{dedup.Success: whereApplied, dedup.Discarded: whereDiscarded,
	dedup.Dead: whereDead, dedup.Processing: whereProcessing, dedup.Failed: whereFailed}

// Awaited is a message that should have come. The names of its JSON form are stable.
type Awaited struct {
	Tag   string    `json:"tag"`
	Key   string    `json:"key"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since,omitzero"` // by the database's clock

	where   where
	body    []byte
	created time.Time
	after   any    // int64, uint64 or string
	order   string // of after
}

// Expected is what became of the messages that should have come. The names of its JSON form are stable.
type Expected struct {
	Seen  int     `json:"seen"`  // that the SELECT named
	Found []Found `json:"found"` // where they are
	Open  int     `json:"open"`  // about which somebody has to do something
	Put   int     `json:"put"`   // into the outbox, by this run
	// Queued are the messages that were ready in the main queue at the end, if some were not seen.
	Queued int `json:"queued"`
}

// Expectation finds out what became of messages that should have come. It reads in pieces, and locks nothing.
type Expectation struct {
	Lookup

	Letters *deadletter.Letters
	Query   Query
	// Publish puts into the outbox what was not seen, once a first pass has shown that nothing speaks against it. Force:
	// a person is sure although messages wait in the queue, bodies differ from what was applied, or the log may have
	// forgotten what has no created_at.
	Publish, Force bool
	Keep           int // so many of each place are named; 0: all
	Progress       func(what string, seen int)
}

// A piece has at most so many rows, which one statement looks up, and mostly no more bytes of bodies than that.
const (
	pieceRows  = 900
	pieceBytes = 4 << 20
)

// expecting is one pass through the SELECT.
type expecting struct {
	Expectation

	found  [len(places)]Found
	seen   int
	last   Awaited
	oldest time.Time // what is younger than that the log remembers; zero: all
	limit  int
	put    bool
}

// Run looks, and publishes if it was asked to. With an error the report is what was found so far.
func (o Expectation) Run(ctx context.Context) (Expected, error) {
	const nothing = "nothing was put into the outbox"
	if o.Publish { // a look takes minutes
		if err := outbox.CheckSchema(ctx, o.Records.Pool()); err != nil {
			return Expected{Found: []Found{}}, fmt.Errorf("%s: %w", nothing, err)
		}
	}
	first := &expecting{Expectation: o}
	e, err := first.pass(ctx)
	if err != nil || !o.Publish || first.found[whereNotSeen].Count == 0 {
		return e, err
	}
	switch other := first.found[whereOtherBody].Count; {
	case o.Force:
	case e.Queued > 0:
		return e, fmt.Errorf("%s: what waits in the main queue (%d) may be what is missing. Let a daemon take it first, or "+
			"force it", nothing, e.Queued)
	case other > 0:
		return e, fmt.Errorf("%s: messages (%d) were applied with another body than the SELECT gives. Of two copies that "+
			"differ the later one is a conflict: mend the SELECT, or force it", nothing, other)
	}
	return (&expecting{Expectation: o, put: true}).pass(ctx)
}

func (r *expecting) pass(ctx context.Context) (e Expected, err error) {
	r.found, r.limit, r.last.after = places, pieceRows/10, ""
	kept, err := r.Letters.Remembers(ctx)
	if kept > 0 {
		r.oldest = time.Now().Add(24*time.Hour - kept) // clocks and time zones of services may be as far from the database's
	}
	for more := true; more && err == nil; {
		more, err = r.piece(ctx)
		r.Progress("messages", r.seen)
	}
	if err == nil && r.found[whereNotSeen].Count > 0 {
		e.Queued, err = r.Letters.Queued(ctx)
	}
	e.Seen, e.Put, e.Found = r.seen, r.found[wherePut].Count, []Found{}
	for _, f := range r.found {
		if f.Count > 0 {
			e.Found = append(e.Found, f)
		}
		if f.Open {
			e.Open += f.Count
		}
	}
	return e, err
}

// piece reads some rows and finds out what became of their messages.
func (r *expecting) piece(ctx context.Context) (more bool, err error) {
	var all []Awaited
	err = r.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
		all, err = r.read(ctx, tx.Statement.ConnPool)
		return err
	}, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
	if err != nil {
		return false, fmt.Errorf("ask which messages should have come after %q: %w", fmt.Sprint(r.last.after), err)
	}
	size, more := 1, len(all) > 0 // fewer than asked for may be those that a condition has left of as many
	for _, a := range all {
		if a.order <= r.last.order {
			return false, fmt.Errorf("of the message %s/%q after is %q, and %q stood before it: it must be a number from 0 on "+
				"or a text, unique, and what the SELECT is ordered by; texts grow by their bytes", a.Tag, a.Key,
				fmt.Sprint(a.after), fmt.Sprint(r.last.after))
		}
		r.last, size = a, size+len(a.body)
	}
	r.limit = max(1, min(pieceRows, pieceBytes*len(all)/size))
	if err := r.find(ctx, all); err != nil {
		return false, err
	}
	r.seen += len(all)
	for _, a := range all {
		f := &r.found[a.where]
		if f.Count++; a.where != whereApplied && (r.Keep == 0 || f.Count <= r.Keep) {
			a.body = nil
			f.First = append(f.First, a)
		}
	}
	return more, nil
}

// read runs the SELECT once.
func (r *expecting) read(ctx context.Context, on mysqldb.Queryer) ([]Awaited, error) {
	args := make([]any, len(r.Query.Params))
	for i, name := range r.Query.Params {
		args[i] = map[string]any{"after": r.last.after, "limit": r.limit}[name]
		if text, ok := args[i].(string); ok && !utf8.ValidString(text) {
			args[i] = []byte(text)
		}
	}
	return mysqldb.List(ctx, on, func(rows *sql.Rows) (a Awaited, err error) {
		if names, err := rows.Columns(); err != nil || !slices.EqualFunc(names, queryColumns, strings.EqualFold) {
			return a, errors.Join(err, fmt.Errorf("its columns are %s; they must be %s", strings.Join(names, ", "),
				strings.Join(queryColumns, ", ")))
		}
		err = rows.Scan(&a.Tag, &a.Key, &a.body, mysqldb.OrZero(&a.created), &a.after)
		switch after := a.after.(type) {
		case []byte:
			a.order = string(after)
			a.after = a.order
		case int64, uint64:
			a.order = fmt.Sprintf("%020d", after)
		}
		return a, err
	}, r.Query.Text, args...)
}

// find says where messages are, and puts into the outbox what is nowhere, if that is to be done.
func (r *expecting) find(ctx context.Context, all []Awaited) error {
	left := map[dedup.Identity]*Awaited{}
	for i := range all {
		a := &all[i]
		if err := (outbox.Message{Tag: a.Tag, Key: a.Key, Body: a.body}).Validate(); err != nil {
			a.Why = err.Error()
		} else {
			left[dedup.Identity{Group: r.Group, Tag: a.Tag, Key: a.Key}] = a
		}
	}
	// From the outbox a message may have come to the log after that was looked at.
	for _, look := range []func(context.Context, map[dedup.Identity]*Awaited) error{r.inLog, r.inOutbox, r.inLog} {
		if err := look(ctx, left); err != nil {
			return err
		}
	}
	var missing []outbox.Message
	for _, a := range left {
		a.where = whereNotSeen
		switch {
		case a.created.Before(r.oldest) && !a.created.IsZero():
			a.where = whereTooOld
		case r.put && (a.body == nil || a.created.IsZero() && !r.oldest.IsZero() && !r.Force):
			a.Why = "not put: the SELECT gives it no body, or no created_at, and the log may have forgotten it"
		case r.put:
			a.where, missing = wherePut, append(missing, outbox.Message{Tag: a.Tag, Key: a.Key, Body: a.body})
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return r.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		return outbox.Put(ctx, tx.Statement.ConnPool, missing...)
	}, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
}

// inLog says where messages are that the log knows, and takes them out of what is left.
func (r *expecting) inLog(ctx context.Context, left map[dedup.Identity]*Awaited) error {
	rows, err := r.Records.LookUp(ctx, slices.SortedFunc(maps.Keys(left), dedup.Identity.Compare))
	for id, row := range rows {
		if row.Status == dedup.Absent {
			continue
		}
		a := left[id]
		delete(left, id)
		hash := sha256.Sum256(a.body)
		switch a.Since, a.where = row.At, whereStatus[row.Status]; {
		case row.Status != dedup.Success:
			a.Why = strings.TrimPrefix(string(row.Reason)+": "+row.Remark, ": ")
		case a.body != nil && row.BodyHash != nil && !bytes.Equal(hash[:], row.BodyHash):
			a.where = whereOtherBody
		}
	}
	return err
}

// inOutbox does that with the outbox. A schema that has none knows nothing.
func (r *expecting) inOutbox(ctx context.Context, left map[dedup.Identity]*Awaited) error {
	all, keys := outbox.Rows{DB: r.Records.Pool()}, map[string][]string{}
	for id := range left {
		keys[id.Tag] = append(keys[id.Tag], id.Key)
	}
	for tag := range keys {
		rows, _, err := all.List(ctx, outbox.Filter{Tag: tag, Keys: keys[tag]}, "", outbox.MaxListed)
		if err != nil && !errors.Is(err, outbox.ErrNoTable) {
			return err
		}
		for _, row := range rows {
			id := dedup.Identity{Group: r.Group, Tag: row.Tag, Key: row.Key}
			a := left[id]
			delete(left, id)
			a.Since, a.where, a.Why = row.PutAt, whereOutbox, strings.TrimSuffix(string(row.State)+": "+row.Reason, ": ")
			if row.State == outbox.Parked {
				a.where = whereParked
			}
		}
	}
	return nil
}

// Expects reports whether it is known which messages should have come.
func (d *Operator) Expects() bool { return d.o.Expected.Text != "" }

// expected is the task of KindExpected. Whoever begins it again finds out once more.
func (d *Operator) expected(ctx context.Context, t Task, r ExpectedRequest) (any, error) {
	const named = 20
	e, err := Expectation{d.o.Lookup, d.o.Letters, d.o.Expected, r.Publish, r.Force, named, t.Progress}.Run(ctx)
	text, _ := json.Marshal(e) // which has a JSON form
	return Result{Retried: e.Put, LeftCount: e.Open, Report: text}, err
}

// ExpectedRequest asks where the messages are that should have come. The names of its JSON form are stable.
type ExpectedRequest struct {
	Publish bool   `json:"publish,omitempty"`
	Force   bool   `json:"force,omitempty"`
	Why     string `json:"why,omitempty" maxLength:"1000"`
}
