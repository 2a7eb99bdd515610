package dedup

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

// stage is where an actor stands; each step leads from one to the next. It is consumer/life.go for one message:
// fast path, slow path, settle.
type stage string

const (
	atIdle      stage = "idle"
	atLook      stage = "look up"
	atFast      stage = "fast path"
	atFastEnd   stage = "fast path, before COMMIT"
	atReopen    stage = "reopen"
	atClaim     stage = "claim"
	atAttempt   stage = "claimed"
	atCommit    stage = "effect and success"
	atCommitEnd stage = "effect and success, before COMMIT"
	atVerify    stage = "COMMIT unknown"
	atBlame     stage = "blame"
	atFail      stage = "fail"
	atUnclaim   stage = "unclaim"
	atExhaust   stage = "exhaust"
	atLetter    stage = "publish the letter"
	atCondemn   stage = "condemn"
	atHeld      stage = "held"
	atDead      stage = "mark dead"
	atBack      stage = "publish the retry copy"
	atAck       stage = "ack"
)

// writes are the stages whose next step needs the row's lock.
var writes = map[stage]bool{
	atFast: true, atReopen: true, atClaim: true, atCommit: true, atFail: true, atUnclaim: true, atExhaust: true,
	atDead: true, atCondemn: true, atBlame: true,
}

// worker is one lane with one message in hand.
type worker struct {
	who   string
	at    stage
	id    *identity
	hand  *message // unacked; nil also when the session was lost
	msg   message
	row   Row
	claim Claim
	owner string
	tx    *sql.Tx
	// beside is another row in the same state that the present stage's change is made together with, if any.
	beside    *Row
	besideFor stage
}

func (w *worker) name() string { return w.who }

func (w *worker) idle() bool { return w.at == atIdle }

func (w *worker) worksOn(id *identity) bool { return w.id == id }

func (w *worker) enabled(m *model) bool {
	if w.at == atIdle {
		for _, id := range m.ids {
			if len(id.main) > 0 {
				return true
			}
		}
		return false
	}
	return !writes[w.at] || !w.id.locked
}

func (w *worker) act(m *model) {
	m.trace = append(m.trace, string(w.at))
	switch w.at {
	case atIdle:
		w.take(m)
	case atLook:
		w.look(m)
	case atFast, atCommit:
		w.begin(m)
	case atFastEnd, atCommitEnd:
		w.end(m)
	case atAttempt:
		w.attempt(m)
	case atVerify:
		w.verify(m)
	case atLetter:
		if m.maybe("letter refused", 3) { // and its lane goes on with others
			w.at = atHeld
			m.stalled[w.who] = m.choose("held", "for a while", "tried at once") == "for a while"
			if w.row.Status != Failed || w.row.Attempts < m.max && !w.row.Condemned() {
				w.at = atCondemn
			}
			return
		}
		if m.confirmed(func() { w.id.letters = append(w.id.letters, max(w.row.Replays, 0)) }) {
			w.at = atDead
		}
	case atHeld:
		w.again(m)
	case atBack:
		if m.confirmed(func() { w.id.retry = append(w.id.retry, message{letter: w.msg.letter}) }) {
			w.at = atAck
		}
	case atAck: // that of a lost session is void
		w.hand = nil
		w.forget()
	default:
		w.transition(m)
	}
}

func (w *worker) take(m *model) {
	for _, id := range m.ids {
		if len(id.main) > 0 && (w.id == nil || m.choose("take", "this", "another") == "this") {
			w.id = id
		}
	}
	w.msg, w.id.main = w.id.main[0], w.id.main[1:]
	w.hand = &w.msg
	w.at = atLook
	if w.msg.redelivered {
		m.count("took a redelivery")
	}
}

// look is OfRow of consumer/internal/decide, and at times a worker that does not heed the clock: the statement must.
func (w *worker) look(m *model) {
	rows := require.Get(m.log.LookUp(m.t.Context(), []Identity{w.id.Identity}))(m.rt)
	w.row = rows[w.id.Identity]
	spent := w.row.Attempts >= m.max
	switch {
	case w.row.Status == Absent && m.heal:
		w.at = atFast
	case w.row.Status == Absent:
		w.at = stage(m.choose("no row", string(atFast), string(atFast), string(atClaim), string(atLetter)))
	case w.row.Status == Dead && w.msg.letter == w.row.Replays:
		m.count("letter moved by hand is reopened")
		w.at = atReopen
	case w.row.Status == Dead, w.row.Status == Discarded:
		m.count("duplicate of dead")
		w.at = atAck
	case w.row.Status == Success:
		m.count("duplicate")
		w.at = atAck
	case w.row.Status == Processing && w.row.LeaseLive && !m.maybe("live lease not heeded", 8):
		w.at = atBack
	case w.row.Status == Processing && spent:
		w.at = atExhaust
	case w.row.Condemned() && !m.maybe("reason not heeded", 2):
		w.at = atLetter
	case w.row.Status == Failed && spent && !m.maybe("maximum not heeded", 2):
		w.at = atLetter
	case w.row.Status == Failed && !w.row.Due && !m.maybe("delay not heeded", 4):
		w.at = atBack
	case w.row.Status == Failed:
		w.at = stage(m.choose("failed before", string(atClaim), string(atFast)))
	default:
		w.at = atClaim
	}
	w.owner, w.besideFor = "", ""
}

// again is what becomes of a delivery whose letter was refused: it goes back, or the letter is tried again if the row
// stands as it did.
func (w *worker) again(m *model) {
	if m.maybe("held too long", 4) {
		w.disconnect(m)
		w.forget()
		return
	}
	rows := require.Get(m.log.LookUp(m.t.Context(), []Identity{w.id.Identity}))(m.rt)
	row := rows[w.id.Identity]
	switch {
	case row.Version == w.row.Version:
		m.count("letter tried again")
		w.at = atLetter
	case row.Status == Success, row.Status == Discarded, row.Status == Dead && w.msg.letter != row.Replays:
		m.count("ended while held")
		w.at = atAck
	default:
		m.count("moved while held")
		w.at = atBack
	}
}

// token is unlike every other of this test run.
func (m *model) token(who string) string { return fmt.Sprintf("%s/%d/%d", who, m.sequences, m.step) }

// transition runs the one call of the log that the stage names. It is repeated while its outcome is unknown.
func (w *worker) transition(m *model) {
	if w.owner == "" {
		w.owner = m.token(w.who)
	}
	ctx, at := m.t.Context(), w.at
	m.did = at
	w.choosePartner(m)
	if at == atFail || at == atUnclaim || at == atDead || at == atCondemn {
		w.id.ending[w.claim.Owner] = true
	}
	var row Row
	err := m.transition(w.id, func() (err error) {
		switch at {
		case atReopen:
			row, err = m.log.Reopen(ctx, w.row, w.id.entry, ReplayNote{By: "by hand", Token: w.owner})
		case atBlame:
			row, err = w.blame(m)
		case atClaim:
			err = w.claimRow(m)
		case atFail:
			row, err = w.fail(m)
		case atUnclaim:
			err = w.own(m, m.log.UnclaimAll(ctx, w.claims()))
		case atExhaust:
			row, err = m.log.Exhaust(ctx, w.row)
		case atCondemn:
			row, err = m.log.Condemn(ctx, w.row, w.id.entry, "permanent", "cause", w.owner)
		case atDead:
			err = m.log.Dead(ctx, w.row, w.id.entry, "permanent", "cause")
		}
		return err
	})
	switch {
	case errors.Is(err, ErrUnknown):
		return // again, with the same arguments
	case errors.Is(err, ErrLost):
		m.count("lost: " + string(at))
		w.at = atBack
		switch at {
		case atUnclaim:
			w.forget()
		case atBlame: // there is a row by now
			w.at = atLook
		}
	case err != nil:
		m.rt.Fatal(err)
	default:
		m.count(string(at))
		w.moved(m, at, row)
	}
}

// moved goes on after a transition that took place.
func (w *worker) moved(m *model, at stage, row Row) {
	switch at {
	case atReopen:
		w.row, w.owner, w.at = row, "", atClaim
	case atClaim:
		if w.row.Status == Processing {
			m.count("takeover")
		}
		w.id.runs(w.claim.Replays, w.claim.Owner)
		w.at = atAttempt
	case atBlame, atFail:
		if at == atBlame {
			w.id.runs(row.Replays, w.owner)
		}
		w.row, w.at = row, atBack
		if row.Attempts >= m.max {
			w.at = atLetter
		}
	case atUnclaim:
		w.forget() // the session ended when the dependency was given up
	case atExhaust:
		w.row, w.at = row, atLetter
	case atCondemn:
		w.row, w.owner, w.at = row, "", atHeld
	case atDead:
		w.at = atAck
	}
}

// attempt is the handler before its transaction, or of the kind that calls out of process.
func (w *worker) attempt(m *model) {
	if m.heal {
		w.at = atCommit
		return
	}
	w.ended(m, m.choose("attempt", "begin", "begin", "begin", "begin", "fails", "fails", "permanent", "dependency away"))
}

// ended goes on after a handler that did not succeed.
func (w *worker) ended(m *model, how string) {
	m.count("attempt " + how)
	switch how {
	case "begin":
		w.at = atCommit
	case "fails":
		w.at = atFail
	case "permanent":
		w.row, w.at = w.claim.Row(), atLetter
	case "dependency away": // the deliveries are given back, then the claim, before anything new is consumed
		w.disconnect(m)
		w.at = atUnclaim
	}
}

// runs notes that an opening's attempt is counted under this owner.
func (id *identity) runs(replays int, owner string) {
	if id.ran[replays] == nil {
		id.ran[replays] = map[string]bool{}
	}
	id.ran[replays][owner] = true
}

func (w *worker) forget() { *w = worker{who: w.who, at: atIdle, hand: w.hand} }

func (w *worker) crash(m *model) {
	if w.tx != nil {
		require.OK(m.rt, w.tx.Rollback())
		w.id.locked = false
	}
	w.disconnect(m)
	w.forget()
}

func (w *worker) disconnect(m *model) {
	if w.hand == nil {
		return
	}
	m.requeue(w.id, *w.hand)
	w.hand = nil
}

func (w *worker) holds(id *identity) *message {
	if w.id == id {
		return w.hand
	}
	return nil
}

func (w *worker) holdsLetter(*identity) bool { return false }

// begin opens the transaction of the effect: the mark first, then the handler.
func (w *worker) begin(m *model) {
	tx, err := m.pool.BeginTx(m.t.Context(), nil)
	if err != nil {
		m.rt.Fatal(err)
	}
	switch {
	case w.at == atFast && w.row.Status == Failed:
		m.count("fast path of a row")
		err = m.log.ApplyAll(m.t.Context(), tx, []Row{w.row})
	case w.at == atFast:
		err = m.log.InsertSuccess(m.t.Context(), tx, []Entry{w.id.entry})
	default:
		w.id.ending[w.claim.Owner] = true
		err = w.succeed(m, tx)
	}
	if err == nil { // what the handler writes
		_, err = tx.ExecContext(m.t.Context(), "INSERT INTO model_effect (name) VALUES (?)", []byte(w.id.Key))
	}
	switch {
	case err == nil:
		w.tx, w.id.locked = tx, true
		w.at = map[stage]stage{atFast: atFastEnd, atCommit: atCommitEnd}[w.at]
		return
	case errors.Is(err, ErrExists):
		m.count("fast path met a row")
		w.at = atLook
	case errors.Is(err, ErrLost):
		m.count("lost: " + string(w.at))
		w.at = atBack
	default:
		m.rt.Fatal(err)
	}
	require.OK(m.rt, tx.Rollback())
}

// end commits the transaction of the effect, or the handler fails in it.
func (w *worker) end(m *model) {
	fast, tx := w.at == atFastEnd, w.tx
	how := "commits"
	switch {
	case m.heal:
	case m.rough:
		how = m.choose("handler", "commits", "fails", "fails", "permanent", "dependency away")
	default:
		how = m.choose("handler", "commits", "commits", "commits", "commits", "fails", "permanent", "dependency away")
	}
	w.tx, w.id.locked = nil, false
	if how != "commits" {
		require.OK(m.rt, tx.Rollback())
		switch {
		case !fast:
			w.ended(m, how)
		case how == "permanent": // blamed in the fast path: dead without an attempt
			w.at = atLetter
		case how == "fails": // in time, that was its attempt
			w.at = stage(m.choose("blame", string(atBlame), string(atBlame), string(atClaim)))
			w.owner = ""
		default:
			w.disconnect(m)
			w.forget()
		}
		return
	}
	switch err := m.commitWith(w.id, tx.Commit); {
	case err == nil:
		m.count("applied")
		w.at = atAck
	case fast:
		w.at = atLook
	default:
		w.at = atVerify
	}
}

// verify looks a COMMIT up whose outcome is unknown: never assume.
func (w *worker) verify(m *model) {
	done, err := m.log.Holds(m.t.Context(), w.id.Identity, w.claim.Applied())
	switch {
	case err != nil:
		m.rt.Fatal(err)
	case done:
		m.count("unknown COMMIT was done")
		w.at = atAck
	case m.maybe("unknown COMMIT given up", 1):
		w.ended(m, "dependency away")
	default:
		m.count("unknown COMMIT is repeated")
		w.at = atCommit
	}
}

// A worker's change may be made together with that of another row in the same state, as messages in groups are: in one
// statement, or, when one of the two rows was moved, each by its own. Nobody else knows the other row, so that its
// change is never lost.

// choosePartner decides, before a stage's first try, whether its change has company.
func (w *worker) choosePartner(m *model) {
	if w.besideFor == w.at {
		return
	}
	w.beside, w.besideFor = nil, w.at
	like := w.claim.version()
	switch w.at {
	case atBlame:
		like = w.row.Version
	case atClaim:
		if like = w.row.Version; w.row.Status != Failed || len(w.row.BodyHash) == 0 {
			return
		}
	case atCommit, atFail, atUnclaim:
	default:
		return
	}
	if m.heal || m.choose("company", "none", "another row") == "none" {
		return
	}
	m.count(string(w.at) + " in company")
	k := key(fmt.Sprintf("beside %d %d", m.sequences, m.step))
	e := entryOf(k)
	w.beside = &Row{Identity: k, Version: like, BodyHash: e.BodyHash[:]}
	if like.Status == Absent {
		return
	}
	require.Get(m.pool.ExecContext(m.t.Context(), "INSERT INTO consumer_log (group_name, msg_tag, msg_key, body_hash, "+
		"consumer_status, consumer_times, replays, owner, consumer_timestamp, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, "+
		"UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6))", append(keyArgs(k), e.BodyHash[:], int(like.Status),
		like.Attempts, like.Replays, orNull(like.Owner), 4*modelLease.Microseconds())...))(m.rt)
}

// partners are the row and the one beside it.
func (w *worker) partners() []Row {
	if w.beside == nil {
		return []Row{w.row}
	}
	return []Row{w.row, *w.beside}
}

// claims are the claim and the one beside it.
func (w *worker) claims() []Claim {
	all := []Claim{w.claim}
	if w.beside != nil {
		v := w.beside.Version
		all = append(all, Claim{Identity: w.beside.Identity, Attempts: v.Attempts, Replays: v.Replays, Owner: v.Owner})
	}
	return all
}

// own is the error of the worker's own change. One of the other row says what the transaction came to, or that nobody
// was allowed to make it (the worker did not heed the maximum): never that somebody else moved it.
func (w *worker) own(m *model, errs []error) error {
	if len(errs) > 1 && errors.Is(errs[1], ErrLost) && (w.at != atClaim && w.at != atBlame || w.beside.Attempts < m.max) {
		m.violated("G", "%s was hindered by another one: %v", w.beside.Key, errs[1])
	}
	return errs[0]
}

func (w *worker) blame(m *model) (Row, error) {
	all := []Blamed{{From: w.row, Entry: w.id.entry, Cause: "failed"}}
	if w.beside != nil {
		all = append(all, Blamed{From: *w.beside, Entry: entryOf(w.beside.Identity), Cause: "failed too"})
	}
	rows, errs := m.log.BlameAll(m.t.Context(), all, w.owner)
	return rows[0], w.own(m, errs)
}

func (w *worker) claimRow(m *model) (err error) {
	if w.beside == nil {
		w.claim, err = m.log.Claim(m.t.Context(), w.row, w.id.entry, w.owner)
		return err
	}
	claims, errs := m.log.ClaimAll(m.t.Context(), known(w.partners()), w.owner)
	w.claim = claims[0]
	return w.own(m, errs)
}

func (w *worker) fail(m *model) (Row, error) {
	var all []Failure
	for _, c := range w.claims() {
		all = append(all, Failure{Claim: c, Cause: "failed"})
	}
	rows, errs := m.log.FailAll(m.t.Context(), all)
	return rows[0], w.own(m, errs)
}

// succeed marks the claim's effect as applied, in tx.
func (w *worker) succeed(m *model, tx *sql.Tx) error {
	w.choosePartner(m)
	if w.beside == nil {
		return m.log.Success(m.t.Context(), tx, w.claim)
	}
	if err := m.log.Hold(m.t.Context(), tx, w.claims()); err != nil {
		return err
	}
	return m.log.SuccessAll(m.t.Context(), tx, w.claims())
}
