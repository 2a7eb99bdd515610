package sql

import (
	"context"
	stdsql "database/sql"
	"fmt"
	"strconv"
	"strings"

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
	changing, err := openOn(s, mysqldb.Connector)
	if err != nil {
		return nil, err
	}
	defer func() { _ = changing.Close() }()
	if err := f.Check(ctx, changing); err != nil {
		return nil, err
	}
	finding, err := openOn(s, mysqldb.FoundRowsConnector)
	if err != nil {
		return nil, err
	}
	defer func() { _ = finding.Close() }()

	t := &trying{file: f, msg: &m}
	if err := t.change(ctx, changing, false); err != nil {
		return nil, err
	}
	if err := t.find(ctx, finding); err != nil {
		return nil, err
	}
	if commit && t.trial.Good() {
		if err := t.change(ctx, changing, true); err != nil {
			return nil, err
		}
	}
	return &t.trial, nil
}

// trying is one trial on its way.
type trying struct {
	file  *File
	msg   *consumer.Message
	trial Trial
	ran   []run        // of the statements in trial.Runs
	what  []*Statement // they are runs of
	found []int64      // by the same, once it is known
}

// change runs the message's way through the file.
func (t *trying) change(ctx context.Context, pool *stdsql.DB, commit bool) error {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // unless it is committed
	t.trial, t.ran, t.what = Trial{Outcome: "applied"}, nil, nil
	way := flow{conn: tx, file: t.file, msg: t.msg, saw: t.saw}
	end, err := way.run(ctx)
	switch {
	case mysqldb.Refuses(err), mysqldb.Classify(err) == mysqldb.FaultTooLarge:
		t.trial.Outcome, t.trial.Why = string(Retry), err.Error()
	case err != nil:
		return err
	case end.err != nil:
		t.trial.Outcome, t.trial.Why = string(Retry), end.err.Error()
		if consumer.IsPermanent(end.err) {
			t.trial.Outcome = string(Permanent)
		}
	case end.by != nil:
		t.trial.Outcome, t.trial.Why = string(Done), end.by.expect.text
	}
	if !commit || !t.trial.Good() {
		return nil
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	t.trial.Committed = true
	return nil
}

// saw writes a run of a statement down.
func (t *trying) saw(s *Statement, r run, rows int64) {
	row := Ran{Line: s.At.Line, Statement: s.shown(r), Changed: rows, Found: rows, Meaning: "go on"}
	if !s.writes() {
		row.Changed = 0
	} else if n := len(t.ran); n < len(t.found) {
		row.Found = t.found[n]
	}
	if r.item >= 0 {
		row.Item = t.file.itemOf(s, r)
	}
	if s.expect != nil {
		row.Expected = s.expect.String()
		if !s.expect.met(rows) {
			row.Meaning = string(s.expect.other)
		}
	}
	t.trial.Runs = append(t.trial.Runs, row)
	t.ran, t.what = append(t.ran, r), append(t.what, s)
}

func (f *File) itemOf(s *Statement, r run) string {
	for in, other := range f.all {
		if other == s {
			return fmt.Sprintf("%v[%d]", in.list, r.item)
		}
	}
	return ""
}

// find runs the same statements on a connection that counts what they match. One that fails now did not before: the
// rows have moved meanwhile, and the number stays what was changed.
func (t *trying) find(ctx context.Context, pool *stdsql.DB) error {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	way := flow{conn: tx, file: t.file, msg: t.msg}
	t.found = nil
	for i, s := range t.what {
		rows, err := way.execute(ctx, s, t.ran[i])
		if err != nil {
			return fmt.Errorf("count the rows that line %d finds: %w", s.At.Line, err)
		}
		t.found = append(t.found, rows)
		if s.writes() {
			t.trial.Runs[i].Found = rows
		}
	}
	return nil
}

// shown is the statement with its values, for people: a string stands in quotes, as Go would write it.
func (s *Statement) shown(r run) string {
	var b strings.Builder
	for _, piece := range s.pieces {
		b.WriteString(piece.text)
		if piece.param == nil {
			continue
		}
		switch v := r.value(piece.param); v.kind {
		case text:
			b.WriteString(strconv.Quote(v.text))
		case null:
			b.WriteString("NULL")
		default:
			b.WriteString(v.text)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
