package dedup

import (
	"bytes"
	"testing"
	"time"
)

func TestACondemnedRowKeepsItsReasonAndGetsNoFurtherAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, from := range map[string]func(Identity) Row{
		"without a row":   absent,
		"under its claim": func(k Identity) Row { return w.claim(absent(k), "a").Row() },
	} {
		t.Run(name, func(t *testing.T) {
			k := key(name)
			e := entryOf(k)
			// given a message that failed for good and whose letter is refused
			left, err := w.log.Condemn(t.Context(), from(k), e, "permanent", "no such order", "worker/1")
			wantError(t, "condemn", err, nil)
			row := w.read(k)
			if left.Version != row.Version || left.Reason != row.Reason || left.Remark != row.Remark {
				t.Errorf("CondemnAll returned %+v, the row is %+v", left, row)
			}
			if row.Status != Failed || !row.Condemned() || row.Reason != "permanent" || row.Remark != "no such order" ||
				!row.DeadAt.IsZero() || !bytes.Equal(row.Body, e.Body) || !bytes.Equal(row.Properties, e.Properties) {
				t.Errorf("condemned row: %+v", row)
			}
			// when a worker comes that has not seen the reason, however late
			w.older(k, 4*time.Hour)
			unseen := w.read(k)
			unseen.Reason = ""
			_, err = w.log.Claim(t.Context(), unseen, e, "b")
			// then it gets no attempt
			wantError(t, "claim", err, ErrLost)
			if again := w.read(k); again.Version != row.Version || again.Reason != "permanent" {
				t.Errorf("the row became %+v", again)
			}
			// and the letter, once it is confirmed, has the reason that was kept
			wantError(t, "dead", w.log.Dead(t.Context(), row, e, row.Reason, row.Remark), nil)
			if dead := w.read(k); dead.Status != Dead || dead.Reason != "permanent" || dead.DeadAt.IsZero() {
				t.Errorf("dead row: %+v", dead)
			}
		})
	}
}

func TestReopeningACondemnedRowForgetsItsReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	row, err := w.log.Condemn(t.Context(), absent(k), entryOf(k), "permanent", "no such order", "worker/1")
	wantError(t, "condemn", err, nil)
	row, err = w.log.Reopen(t.Context(), row, entryOf(k), ReplayNote{By: "me", Token: "t"})
	wantError(t, "reopen", err, nil)
	if row.Condemned() || w.read(k).Reason != "" {
		t.Errorf("reopened row: %+v", w.read(k))
	}
	_, err = w.log.Claim(t.Context(), row, entryOf(k), "b")
	wantError(t, "claim", err, nil)
}

func TestAnExhaustedRowIsNotCondemned(t *testing.T) {
	if (Row{Version: Version{Status: Failed}, Reason: ReasonCrashed}).Condemned() {
		t.Error("a crashed row gets no attempts when more are allowed")
	}
	for _, s := range []Status{Absent, Processing, Success, Dead, Discarded} {
		if (Row{Version: Version{Status: s}, Reason: "permanent"}).Condemned() {
			t.Errorf("a row in %v is condemned", s)
		}
	}
}

func TestCondemnNeedsAReasonAndAnOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []Condemnation{{Reason: "", Owner: "o"}, {Reason: "permanent", Owner: ""}} {
		if _, err := w.log.Condemn(t.Context(), absent(key("k")), entryOf(key("k")), c.Reason, "", c.Owner); err == nil {
			t.Errorf("reason %q, owner %q were taken", c.Reason, c.Owner)
		}
	}
}
