package dedup

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

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

func (w *worker) unclaim(m *model) error {
	return w.own(m, m.log.UnclaimAll(m.t.Context(), w.claims()))
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
