package dedup

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"pgregory.net/rapid"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// The clock of the model: nothing comes due by itself while a sequence runs.
const (
	modelLease = 3 * time.Hour
	modelDelay = time.Hour
)

// lab is what all sequences share, and what it counts.
type lab struct {
	t         *testing.T
	wire      *lossyWire
	pool      *sql.DB
	logs      map[int]*Log // by MaxAttempts
	sequences int
	messages  int
	steps     int // random ones
	shortest  int
	healing   int // steps after the faults, until everything rests
	happened  map[string]int
	violation string // the first
}

// model is one sequence: a few identities, the actors on them, and the broker between.
type model struct {
	*lab
	rt      *rapid.T
	log     *Log
	max     int
	ids     []*identity
	actors  []actor
	zombies []*openCommit
	stalled map[string]bool // actors that do nothing for a while
	resends int
	trace   []string
	sent    int  // messages of this sequence
	rough   bool // handlers fail more often than not
	heal    bool // faults are over, handlers succeed
	step    int
	did     stage // the transition that this step makes, if any
}

// message is one copy in the broker. letter is -1, or the replays that a letter moved to the main queue by hand
// carries.
type message struct {
	redelivered bool
	letter      int
}

// identity is one row, its copies in the broker, and what the test knows of both by itself.
type identity struct {
	Identity
	entry Entry

	main, retry []message
	letters     []int // in the dead-letter queue: the replays each was made at, -1 when the broker made it
	locked      bool  // an open transaction has the row

	row     Version // as committed
	effects int
	age     time.Duration           // since the last transition
	early   bool                    // given back unrun: due at once
	doomed  bool                    // failed, and keeps the reason of its letter
	revived bool                    // discarded, until a reopen was committed that nobody waited for any more
	ran     map[int]map[string]bool // claims that a worker got, by replays and owner
	ending  map[string]bool         // owners that have tried to end their claim
}

// openCommit is a transaction whose COMMIT the server has not decided.
type openCommit struct {
	*zombie
	id *identity
}

// actor is somebody who works step by step.
type actor interface {
	name() string
	enabled(m *model) bool
	act(m *model)
	idle() bool
	worksOn(id *identity) bool
	crash(m *model)      // loses all it knows; what it had in hand goes back to the broker
	disconnect(m *model) // keeps what it knows, loses what it had in hand
	holds(id *identity) *message
	holdsLetter(id *identity) bool
}

func (m *model) count(what string) { m.happened[what]++ }

// choose draws one of the options; one that stands there twice is twice as likely.
func (m *model) choose(label string, options ...string) string {
	if len(options) == 1 {
		return options[0]
	}
	o := rapid.SampledFrom(options).Draw(m.rt, label)
	m.trace = append(m.trace, o)
	return o
}

// maybe is true about once in n while faults last.
func (m *model) maybe(what string, n int) bool {
	if m.heal || rapid.IntRange(0, n).Draw(m.rt, what) != n/2 {
		return false
	}
	m.count(what)
	m.trace = append(m.trace, what)
	return true
}

// commitWith runs what ends in one COMMIT on id's row, whose fate is drawn.
func (m *model) commitWith(id *identity, commit func() error) error {
	f := answered
	if !m.heal {
		all := []fate{answered, answered, answered, answered, answered, answered, answered, answered, lostAfter, lostBefore,
			undecided}
		f = rapid.SampledFrom(all).Draw(m.rt, "COMMIT")
	}
	m.wire.next = f
	err := commit()
	took := m.wire.next != f || f == answered
	m.wire.next = answered
	if took && f != answered {
		m.count(string(f))
		m.trace = append(m.trace, string(f))
	}
	if z := m.wire.left; z != nil {
		m.wire.left = nil
		m.zombies = append(m.zombies, &openCommit{z, id})
		id.locked = true
	}
	return err
}

// transition runs one call of the log that commits by itself. Sometimes all of its answer is forgotten.
func (m *model) transition(id *identity, call func() error) error {
	err := m.commitWith(id, call)
	n := 12
	if m.did == atUnclaim {
		n = 1 // it is given up and paid later, when others have gone on
	}
	if err == nil && m.maybe("answer forgotten", n) {
		return ErrUnknown
	}
	return err
}

// confirmed publishes a copy. false: the confirm was lost, and with it perhaps the copy.
func (m *model) confirmed(publish func()) bool {
	if !m.maybe("confirm lost", 12) {
		publish()
		return true
	}
	if m.choose("copy", "arrived", "did not arrive") == "arrived" {
		publish()
	}
	return false
}

// requeue gives a copy back: the broker delivers it again, or, over its delivery limit, makes a letter of it.
func (m *model) requeue(id *identity, c message) {
	if c.letter < 0 && m.maybe("delivery limit", 14) {
		id.letters = append(id.letters, -1)
		return
	}
	m.count("redelivery")
	c.redelivered = true
	id.main = append(id.main, c)
}

// sync reads the committed state and judges how it came about.
func (m *model) sync() {
	for _, id := range m.ids {
		next, effects := Version{Status: Absent}, 0
		var owner, reason sql.NullString
		row := m.pool.QueryRowContext(m.t.Context(), "SELECT consumer_status, consumer_times, replays, owner, reason,"+
			" (SELECT COUNT(*) FROM model_effect WHERE name = l.msg_key) FROM consumer_log l"+keyIs, keyArgs(id.Identity)...)
		switch err := row.Scan(&next.Status, &next.Attempts, &next.Replays, &owner, &reason, &effects); err {
		case nil:
			next.Owner = owner.String
		case sql.ErrNoRows:
			require.OK(m.rt, m.pool.QueryRowContext(m.t.Context(), "SELECT COUNT(*) FROM model_effect WHERE name = ?",
				[]byte(id.Key)).Scan(&effects))
		default:
			m.rt.Fatal(err)
		}
		prev := id.row
		id.row, id.effects = next, effects
		if next != prev {
			m.rt.Logf("      %s: %v -> %v, effects %d", id.Key, prev, next, effects)
			m.judge(id, prev, next, m.did)
		}
		id.doomed = next.Status == Failed && reason.String == "permanent"
	}
	m.did = ""
	m.check()
}

// judge looks at one step of a row: was it time, and does the row count what happened?
func (m *model) judge(id *identity, prev, next Version, did stage) {
	reopened := next.Status == Failed && next.Replays == max(prev.Replays, 0)+1
	if !reopened && prev.Status != Absent && next.Replays != prev.Replays {
		m.violated("A", "%s: %v became %v: it forgot a reopening", id.Key, prev, next)
	}
	if prev.Status == Processing && id.age < modelLease &&
		(next.Status == Processing || next.Status == Discarded || reopened || did == atExhaust) {
		m.violated("B", "%s: %v became %v %v after its claim, although the lease is %v", id.Key, prev, next, id.age,
			modelLease)
	}
	exhausted := next.Status == Failed && next.Attempts == prev.Attempts && id.age >= modelLease
	if prev.Status == Processing && next.Status != Processing && next.Status != Discarded && !reopened && !exhausted &&
		!id.ending[prev.Owner] {
		m.violated("B", "%s: %v became %v, and its owner did nothing", id.Key, prev, next)
	}
	tried := next.Status == Processing || next.Status == Success || next.Status == Failed && next.Attempts > prev.Attempts
	if due := m.due(prev.Attempts); prev.Status == Failed && tried && id.age < due && !id.early {
		m.violated("B", "%s: %v became %v %v after its failure, due after %v", id.Key, prev, next, id.age, due)
	}
	if id.doomed && (tried || next.Status == Failed && !reopened && did != atCondemn) {
		m.violated("P", "%s: %v failed for good and became %v", id.Key, prev, next)
	}
	givenBack := prev.Status == Processing && next.Status == Failed && !reopened && next.Attempts == prev.Attempts-1
	if givenBack {
		delete(id.ran[prev.Replays], prev.Owner)
	}
	id.age, id.early = 0, givenBack
}

// due is how long a row waits after so many attempts, by the test's own reckoning.
func (m *model) due(attempts int) time.Duration {
	if attempts <= 0 {
		return 0
	}
	return time.Duration(min(attempts, 2)) * modelDelay * 9 / 10
}

// check holds the invariants that are about what is, not how it came about.
func (m *model) check() {
	for _, id := range m.ids {
		copies := len(id.main) + len(id.retry)
		letters := len(id.letters)
		ownLetter := false
		for _, c := range slices.Concat(id.main, id.retry) {
			ownLetter = ownLetter || c.letter == id.row.Replays
		}
		for _, a := range m.actors {
			if c := a.holds(id); c != nil {
				copies++
				ownLetter = ownLetter || c.letter == id.row.Replays
			}
			if a.holdsLetter(id) {
				letters++
			}
		}
		if id.revived && id.row.Status == Failed && copies+letters == 0 {
			// Its letter was moved by hand and acked as discarded: a person has `reconcile --republish` send it again.
			id.main, copies = append(id.main, message{letter: -1}), 1
		}
		ran := len(id.ran[id.row.Replays])
		switch {
		case id.effects > 1:
			m.violated("E", "%s: %d effects", id.Key, id.effects)
		case (id.effects == 1) != (id.row.Status == Success):
			m.violated("S", "%s is %v with %d effects", id.Key, id.row, id.effects)
		case id.row.Status != Success && id.row.Status != Discarded && copies+letters == 0:
			m.violated("L", "%s is %v, and there is no copy of it", id.Key, id.row)
		case id.row.Status == Dead && letters == 0 && !ownLetter:
			m.violated("D", "%s is %v, and there is no letter of it", id.Key, id.row)
		case ran > m.max || id.row.Status != Absent && (ran > id.row.Attempts || id.row.Attempts > m.max):
			m.violated("A", "%s is %v after %d attempts, of %d allowed", id.Key, id.row, ran, m.max)
		}
	}
}

// The invariants by letter, as in docs/model.
var invariants = map[string]string{
	"E": "the effect is committed at most once",
	"S": "success and effect stand or fall together",
	"L": "nothing is lost",
	"D": "a dead row has a letter",
	"A": "the row counts its openings and the attempts of each, and allows no more than the maximum",
	"B": "no attempt before its time, nothing taken from a live lease",
	"P": "what failed for good gets no further attempt until it is reopened",
	"G": "who shares a transaction is not hindered by others whose rows were moved",
	"H": "when the faults are over, everything ends",
}

func (m *model) violated(invariant, format string, args ...any) {
	m.rt.Helper()
	what := fmt.Sprintf(format, args...)
	if m.violation == "" {
		m.violation = fmt.Sprintf("%s after %d sequences and %d steps: %s", invariant, m.sequences, m.steps, what)
	}
	m.rt.Fatalf("%s (%s) is violated: %s", invariant, invariants[invariant], what)
}

// logStep writes one step into the trace that a failed sequence prints.
func (m *model) logStep(name string) {
	m.rt.Logf("%3d %s: %s", m.step, name, strings.Join(m.trace, ", "))
	m.trace = m.trace[:0]
}

// fate is what becomes of one COMMIT.
type fate string

// A COMMIT is answered; or its answer is lost and it took place, or did not, or stays undecided in the server with all
// its locks until somebody decides it.
const (
	answered   fate = "answered"
	lostAfter  fate = "answer lost, committed"
	lostBefore fate = "answer lost, not committed"
	undecided  fate = "answer lost, decided later"
)

var errAnswerLost = errors.New("the answer to COMMIT was lost")

// lossyWire connects to a real server and loses the answer to a COMMIT when told to. One goroutine uses it.
type lossyWire struct {
	driver.Connector
	next fate    // of the next COMMIT
	left *zombie // the transaction that the last undecided COMMIT left open
}

// zombie is a transaction that lives on in the server after its client lost the connection.
type zombie struct {
	conn *lossyConn
	tx   driver.Tx
}

// decide ends a zombie the way the server would.
func (z *zombie) decide(commit bool) error {
	end := z.tx.Rollback
	if commit {
		end = z.tx.Commit
	}
	return errors.Join(end(), z.conn.mysqlConn.Close())
}

// mysqlConn is all that database/sql uses of the driver's connection.
type mysqlConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type lossyConn struct {
	mysqlConn
	wire   *lossyWire
	undead bool // its transaction outlives the pool's connection
}

func (w *lossyWire) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &lossyConn{mysqlConn: conn.(mysqlConn), wire: w}, nil
}

func (c *lossyConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.mysqlConn.BeginTx(ctx, o)
	return &lossyTx{tx, c}, err
}

// Close leaves an undecided transaction to the server.
func (c *lossyConn) Close() error {
	if c.undead {
		return nil
	}
	return c.mysqlConn.Close()
}

type lossyTx struct {
	driver.Tx
	conn *lossyConn
}

func (tx *lossyTx) Commit() error {
	w := tx.conn.wire
	fate := w.next
	w.next = answered
	switch fate {
	case lostAfter:
		return errors.Join(tx.Tx.Commit(), errAnswerLost)
	case lostBefore:
		return errors.Join(tx.Rollback(), errAnswerLost)
	case undecided:
		tx.conn.undead = true
		w.left = &zombie{tx.conn, tx.Tx}
		return driver.ErrBadConn // database/sql gives the connection up
	}
	return tx.Tx.Commit()
}

// openLossy opens a pool as Open does, over a wire that may lose answers.
func openLossy(t *testing.T, dsn string) (*lossyWire, *sql.DB, *gorm.DB) {
	t.Helper()
	inner := require.First(mysqldb.Connector(dsn, mysqldb.Options{LockWait: time.Second}))(t)
	wire := &lossyWire{Connector: inner, next: answered}
	pool := sql.OpenDB(wire)
	pool.SetMaxIdleConns(20)
	t.Cleanup(func() { pool.Close() })
	db := require.Get(gorm.Open(gormmysql.New(gormmysql.Config{Conn: pool, SkipInitializeWithVersion: true}),
		&gorm.Config{SkipDefaultTransaction: true, DisableAutomaticPing: true, Logger: logger.Discard}))(t)
	return wire, pool, db
}
