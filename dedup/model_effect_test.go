package dedup

import (
	"errors"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

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
	if err == nil {
		err = m.effect(tx, w.id)
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
