package sql

import (
	"context"
	stdsql "database/sql"
	"fmt"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// Ran is one run of a statement in a [Trial]. The names of its JSON form are stable.
type Ran struct {
	Line      int    `json:"line"`
	Item      string `json:"item,omitempty"` // such as items[0]
	Statement string `json:"statement"`      // with the values in it, as the server was sent it
	Found     int64  `json:"found"`          // rows that it matched, or that a SELECT found
	Changed   int64  `json:"changed"`
	Expected  string `json:"expected,omitempty"`
	Meaning   string `json:"meaning"`

	of  *Statement
	run run
}

// Trial is what a message makes of the file. The names of its JSON form are stable.
type Trial struct {
	Runs      []Ran `json:"runs"`
	Committed bool  `json:"committed"`
	// Outcome is applied, done, retry, permanent, malformed or refused by the database.
	Outcome string `json:"outcome"`
	Why     string `json:"why,omitempty"`
}

// Good reports whether the message would be marked success.
func (t *Trial) Good() bool { return t.Outcome == "applied" || t.Outcome == string(Done) }

// Try runs one message against the file in a transaction that is rolled back, or with commit is committed when the
// message would be marked success; the consumer log is not asked and not written. A second transaction, which is always
// rolled back, counts what the statements found: the server tells a connection either that or what was changed.
//
// The error says that the file was refused ([*Refusal]) or that the database did not answer.
func (f *File) Try(ctx context.Context, s Server, m consumer.Message, commit bool) (*Trial, error) {
	d, err := f.decode(m.Body)
	if err != nil {
		return &Trial{Outcome: "malformed", Why: err.Error()}, nil
	}
	m.Value = d
	changing, err := s.open(mysqldb.Connector)
	if err != nil {
		return nil, err
	}
	defer func() { _ = changing.Close() }()
	if err := f.Check(ctx, changing); err != nil {
		return nil, err
	}
	finding, err := s.open(mysqldb.FoundRowsConnector)
	if err != nil {
		return nil, err
	}
	defer func() { _ = finding.Close() }()

	first, err := f.change(ctx, changing, &m, false)
	if err != nil {
		return nil, err
	}
	if err := first.find(ctx, finding); err != nil || !commit || !first.Good() {
		return first, err
	}
	t, err := f.change(ctx, changing, &m, true)
	if err != nil {
		return nil, err
	}
	for i := range t.Runs[:min(len(t.Runs), len(first.Runs))] {
		t.Runs[i].Found = first.Runs[i].Found
	}
	return t, nil
}

// change runs the message's way through the file.
func (f *File) change(ctx context.Context, pool *stdsql.DB, m *consumer.Message, commit bool) (*Trial, error) {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // unless it is committed
	t := &Trial{Outcome: "applied"}
	end, err := f.run(ctx, tx, m, t.saw)
	switch {
	case mysqldb.Refuses(err), mysqldb.Classify(err) == mysqldb.FaultTooLarge:
		t.Outcome, t.Why = string(Retry), err.Error()
	case err != nil:
		return nil, err
	case consumer.IsPermanent(end.err):
		t.Outcome, t.Why = string(Permanent), end.err.Error()
	case end.err != nil:
		t.Outcome, t.Why = string(Retry), end.err.Error()
	case end.by != nil:
		t.Outcome, t.Why = string(Done), end.by.expect.text
	}
	if commit && t.Good() {
		if err := tx.Commit(); err != nil {
			return nil, fmt.Errorf("commit: %w", err)
		}
		t.Committed = true
	}
	return t, nil
}

// saw writes a run of a statement down.
func (t *Trial) saw(s *Statement, r run, rows int64) {
	ran := Ran{Line: s.At.Line, Item: r.itemName(), Statement: s.shown(r), Found: rows, Meaning: "go on", of: s, run: r}
	if s.writes() {
		ran.Changed = rows
	}
	if s.expect != nil {
		ran.Expected = s.expect.String()
		if !s.expect.met(rows) {
			ran.Meaning = string(s.expect.other)
		}
	}
	t.Runs = append(t.Runs, ran)
}

// find runs the same statements on a connection that counts what they match.
func (t *Trial) find(ctx context.Context, pool *stdsql.DB) error {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for i, r := range t.Runs {
		rows, err := r.of.execute(ctx, tx, r.run)
		if err != nil {
			return fmt.Errorf("count the rows that line %d finds: %w", r.Line, err)
		}
		if r.of.writes() {
			t.Runs[i].Found = rows
		}
	}
	return nil
}
