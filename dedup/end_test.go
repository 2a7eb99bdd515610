package dedup

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestDeadKeepsWhatAPersonNeeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		name  string
		from  func(Identity) Row
		story string
		want  Version
	}{
		{"malformed, without a row", absent, "absent>dead 0/0", Version{Status: Dead}},
		{
			"permanent, under its claim", func(k Identity) Row { return w.claim(absent(k), "a").Row() },
			"absent>processing 1/0, processing>dead 1/0", Version{Dead, 1, 0, "a"},
		},
		{
			"after a failure", func(k Identity) Row { return w.fail(w.claim(absent(k), "a"), "boom") },
			"absent>processing 1/0, processing>failed 1/0, failed>dead 1/0", Version{Dead, 1, 0, "a"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := key(c.name)
			e := entryOf(k)

			wantError(t, "dead", w.log.Dead(t.Context(), c.from(k), e, "permanent", "no such order"), nil)

			row := w.read(k)
			wantVersion(t, row, c.want)
			if row.Reason != "permanent" || row.Remark != "no such order" || row.DeadAt.IsZero() ||
				!bytes.Equal(row.Body, e.Body) ||
				!bytes.Equal(row.Properties, e.Properties) || !bytes.Equal(row.BodyHash, e.BodyHash[:]) ||
				row.MessageID != e.MessageID {
				t.Errorf("dead row: %+v", row)
			}
			if got := w.story(k); got != c.story {
				t.Errorf("story: %s\nwant:  %s", got, c.story)
			}
			if last := w.events(k)[len(w.events(k))-1]; last.Error != "no such order" {
				t.Errorf("event %+v", last)
			}
		})
	}
}

func TestDeadNeedsAReasonThatFits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, reason := range []Reason{"", Reason(strings.Repeat("r", MaxReason+1)), "\xff"} {
		if err := w.log.Dead(t.Context(), absent(key("k")), entryOf(key("k")), reason, ""); err == nil {
			t.Errorf("reason %q was taken", reason)
		}
	}
}

func TestDeadAllOfLargeBodiesStaysBelowThePacketLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := bytes.Repeat([]byte{'\''}, MaxBody) // every byte needs an escape
	var letters []Letter
	for i := range 50 {
		e := entryOf(key(fmt.Sprint(i)))
		e.Body = body
		letters = append(letters, Letter{e, "malformed", ""})
	}
	wantError(t, "dead", w.log.DeadAll(t.Context(), letters), nil)
	if got := w.read(key("49")); !bytes.Equal(got.Body, body) {
		t.Errorf("kept %d bytes of %d", len(got.Body), len(body))
	}
}

func TestReopenedRowStartsAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	row := w.fail(w.claim(absent(k), "a"), "boom")
	wantError(t, "dead", w.log.Dead(t.Context(), row, entryOf(k), "permanent", "no such order"), nil)

	row, err := w.log.Reopen(t.Context(), w.read(k), entryOf(k), ReplayNote{
		By: "ann", Filter: "--reason permanent", Token: "replay-1",
	})

	wantError(t, "reopen", err, nil)
	got := w.read(k)
	for _, r := range []Row{row, got} {
		wantVersion(t, r, Version{Failed, 0, 1, "replay-1"})
		if !r.Due || r.Reason != "" || r.Remark != "no such order" {
			t.Errorf("due %v, reason %q, remark %q", r.Due, r.Reason, r.Remark)
		}
	}
	if !got.DeadAt.IsZero() || len(got.Body) == 0 {
		t.Errorf("dead at %v, body %q", got.DeadAt, got.Body)
	}
	last := w.events(k)[len(w.events(k))-1]
	if last.By != "ann" || last.Error != "replayed --reason permanent" || last.Owner != "replay-1" {
		t.Errorf("event %+v", last)
	}
	if claim := w.claim(row, "b"); claim.Attempts != 1 || claim.Replays != 1 {
		t.Errorf("claim after the replay: %+v", claim)
	}
}

func TestReopenAfterItsAnswerWasLostIsNotTakenForAnothers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	from := absent(k)
	note := ReplayNote{Token: "mine"}
	row, err := w.log.Reopen(t.Context(), from, entryOf(k), note)
	wantError(t, "reopen", err, nil)
	w.claim(row, "worker") // the row went on: whether it was our reopen cannot be seen any more

	_, err = w.log.Reopen(t.Context(), from, entryOf(k), note)
	wantError(t, "repeated reopen", err, ErrLost)
}

func TestDiscardSaysWhoAndWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	wantError(t, "dead", w.log.Dead(t.Context(), absent(k), entryOf(k), "malformed", "bad"), nil)

	wantError(t, "discard", w.log.Discard(t.Context(), w.read(k), entryOf(k), "ann", "test data"), nil)

	row := w.read(k)
	wantVersion(t, row, Version{Status: Discarded})
	if row.Remark != "discarded by ann: test data" || row.Reason != "malformed" {
		t.Errorf("remark %q, reason %q", row.Remark, row.Reason)
	}
	last := w.events(k)[len(w.events(k))-1]
	if last.By != "ann" || last.Error != "test data" || time.Since(last.At).Abs() > time.Minute {
		t.Errorf("event %+v", last)
	}
	wantError(t, "discard again", w.log.Discard(t.Context(), row, entryOf(k), "bob", ""), ErrStale)
	_, err := w.log.Reopen(t.Context(), row, entryOf(k), ReplayNote{Token: "1"})
	wantError(t, "reopen, not asked", err, ErrStale)
	_, err = w.log.Reopen(t.Context(), row, entryOf(k), ReplayNote{Token: "1", Discarded: true})
	wantError(t, "reopen, asked", err, nil)
}
