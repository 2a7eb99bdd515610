package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"
)

// counting counts the statements that change something.
type counting struct {
	Execer
	n int
}

func (c *counting) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	c.n++
	return c.Execer.ExecContext(ctx, query, args...)
}

func rowsNamed(n int) (rows []Row, entries []Entry) {
	for i := range n {
		e := entryOf(key(fmt.Sprintf("%04d", i)))
		entries = append(entries, e)
		rows = append(rows, Row{Identity: e.Identity, Version: Version{Status: Absent}})
	}
	return rows, entries
}

func (w *world) blameAll(entries []Entry, cause func(i int) string) []Row {
	w.t.Helper()
	blamed := make([]Blamed, len(entries))
	for i, e := range entries {
		blamed[i] = Blamed{e, cause(i)}
	}
	rows, errs := w.log.BlameAll(w.t.Context(), blamed, "blame/1")
	for i, err := range errs {
		wantError(w.t, "blame "+entries[i].Key, err, nil)
	}
	return rows
}

// Messages of one version share statements: that is what makes failures fast.
func TestManyOfOneVersionTakeTwoStatements(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, entries := rowsNamed(maxSameShape)
	var changes []*change
	for i := range entries {
		c, err := w.log.begin(actionBlame, absent(entries[i].Identity))
		wantError(t, "begin", err, nil)
		c.to, c.entry = Version{Failed, 1, 0, "o"}, &entries[i]
		c.say(fmt.Sprint("cause ", i))
		changes = append(changes, c)
	}
	wantError(t, "apply", w.log.inTx(t.Context(), func(tx Execer) error {
		count := &counting{Execer: tx}
		err := w.log.applyAll(t.Context(), count, changes)
		if count.n != 2 {
			t.Errorf("%d statements for %d rows and their events, want 2", count.n, len(changes))
		}
		return err
	}), nil)
}

// Each row keeps its own error, whatever is in it.
func TestManyFailuresKeepTheirOwnCauses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, entries := rowsNamed(300)
	cause := func(i int) string { return fmt.Sprintf("%d: it's \\ broken ü %s", i, strings.Repeat("x", i)) }
	// given rows that were blamed
	rows := w.blameAll(entries, cause)
	for i, row := range rows {
		if have := w.read(row.Identity); have.Remark != cause(i) || have.Version != row.Version ||
			string(have.Body) != string(entries[i].Body) {
			t.Fatalf("%v is %+v after it was blamed", row.Identity, have)
		}
		w.older(row.Identity, time.Hour)
	}
	// when they are claimed and fail again
	claims, errs := w.log.ClaimAll(t.Context(), known(rows), "claim/1")
	failures := make([]Failure, len(claims))
	for i, c := range claims {
		wantError(t, "claim", errs[i], nil)
		failures[i] = Failure{c, "again " + cause(i)}
	}
	failed, errs := w.log.FailAll(t.Context(), failures)
	// then each says its own error, in the row and in its story
	for i, row := range failed {
		wantError(t, "fail", errs[i], nil)
		have := w.read(row.Identity)
		if have.Remark != "again "+cause(i) || have.Status != Failed || have.Attempts != 2 {
			t.Fatalf("%v is %+v", row.Identity, have)
		}
		if events := w.events(row.Identity); len(events) != 3 || events[0].Error != cause(i) ||
			events[2].Error != "again "+cause(i) {
			t.Fatalf("the story of %v: %+v", row.Identity, events)
		}
	}
}

// Whoever holds claims holds off those who would take them over, and finds out whom it has lost.
func TestClaimsThatAreHeldAreComparedOneByOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, spoil := range map[string]string{
		"taken over":    "UPDATE consumer_log SET owner = 'b'",
		"counted":       "UPDATE consumer_log SET consumer_times = 3",
		"replayed":      "UPDATE consumer_log SET replays = 1",
		"another state": "UPDATE consumer_log SET consumer_status = 2",
		"gone":          "DELETE FROM consumer_log",
	} {
		t.Run(name, func(t *testing.T) {
			_, entries := rowsNamed(5)
			for i := range entries {
				entries[i].Tag = name
			}
			rows := w.blameAll(entries, func(int) string { return "no" })
			for _, row := range rows {
				w.older(row.Identity, time.Hour)
			}
			claims, _ := w.log.ClaimAll(t.Context(), known(rows), "claim/1")
			hold := func() error {
				return w.inTx(func(tx *sql.Tx) error {
					if err := w.log.Hold(t.Context(), tx, claims); err != nil {
						return err
					}
					return w.log.SuccessAll(t.Context(), tx, claims[:2])
				})
			}
			// given five claims, one of which is not ours any more
			w.exec(spoil+keyIs, keyArgs(claims[3].Identity)...)
			// then none of them has an effect
			wantError(t, "hold", hold(), ErrLost)
			if row := w.read(claims[0].Identity); row.Status != Processing {
				t.Errorf("the first is %+v", row)
			}
			// and without that one they have
			claims = append(claims[:3:3], claims[4])
			wantError(t, "hold the others", hold(), nil)
			if row := w.read(claims[1].Identity); row.Version != claims[1].Applied() || row.Body != nil {
				t.Errorf("the second is %+v", row)
			}
		})
	}
}

// A worker that has read a row and stood still since may find the same attempts and replays in it: its last attempt was
// begun in a group and taken back. It is to run alone now, and the worker read it without its mark.
func TestAClaimWithOthersDoesNotTakeWhatIsToRunAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, entries := rowsNamed(2)
	w.blameAll(entries, func(int) string { return "no" })
	w.exec("UPDATE consumer_log SET consumer_times = ?", w.log.o.MaxAttempts-1)
	var asRead []Row
	for _, e := range entries {
		w.older(e.Identity, 24*time.Hour)
		asRead = append(asRead, w.read(e.Identity))
	}
	// given the first one's last attempt, claimed in a group that never came back, and taken back
	_, errs := w.log.ClaimAll(t.Context(), known(asRead[:1]), "claim/1"+MarkGroup)
	wantError(t, "claim", errs[0], nil)
	w.older(asRead[0].Identity, 24*time.Hour)
	forgiven, err := w.log.Forgive(t.Context(), w.read(asRead[0].Identity))
	wantError(t, "forgive", err, nil)
	// when both are claimed as they were read
	claims, errs := w.log.ClaimAll(t.Context(), known(asRead), "claim/2"+MarkGroup)
	// then the second is, and the first only by itself, with its mark
	wantError(t, "claim what is marked by now", errs[0], ErrLost)
	wantError(t, "claim its neighbour", errs[1], nil)
	if row := w.read(claims[1].Identity); row.Owner != "claim/2"+MarkGroup {
		t.Errorf("the neighbour is %+v", row)
	}
	if row := w.read(asRead[0].Identity); row.Version != forgiven.Version {
		t.Errorf("the marked one is %+v, want %+v", row.Version, forgiven.Version)
	}
	_, err = w.log.Claim(t.Context(), forgiven, entries[0], "claim/3"+MarkAlone)
	wantError(t, "claim it alone", err, nil)
}

// An answer that was lost is asked for again under the same owner: what the first call did is found, and no attempt
// counted twice.
func TestBlameThatIsRepeatedCountsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, entries := rowsNamed(3)
	first := w.blameAll(entries, func(int) string { return "no" })
	second := w.blameAll(entries, func(int) string { return "no" })
	for i := range entries {
		if first[i].Version != second[i].Version || len(w.events(entries[i].Identity)) != 1 {
			t.Errorf("%v: %+v, then %+v, events %+v", entries[i].Identity, first[i], second[i], w.events(entries[i].Identity))
		}
	}
	// under another owner it is somebody else's row
	_, errs := w.log.BlameAll(t.Context(), []Blamed{{entries[0], "no"}}, "blame/2")
	wantError(t, "blame what has a row", errs[0], ErrLost)
}
