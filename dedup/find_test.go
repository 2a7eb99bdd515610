package dedup

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMentioningFindsAnOriginalByRemarkAndByStory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := func(name, cause string) Identity {
		k := Identity{"g", "rollbackd.conflict", name}
		if err := w.log.DeadAll(t.Context(), []Letter{{
			Entry: Entry{Identity: k, Body: []byte("{}")}, Reason: "conflict", Cause: cause,
		}}); err != nil {
			t.Fatal(err)
		}
		return k
	}
	// given three conflicts, of which one has another remark by now
	a, b := file("sha256:a", `taken (tag "t", key "A-1")`), file("sha256:b", `taken (tag "t", key "A-1")`)
	file("sha256:c", `taken (tag "t", key "a-1")`)
	if err := w.log.Discard(t.Context(), w.read(b), Entry{Identity: b}, "ann", "a test"); err != nil {
		t.Fatal(err)
	}
	keys, seen, err := w.log.Mentioning(t.Context(), "g", "rollbackd.conflict", `, key "A-1")`, 1000)
	if err != nil || !slices.Equal(keys, []Identity{a, b}) || !seen.All {
		t.Errorf("found %v, %+v, %v; want %v and %v, and all looked at", keys, seen, err, a, b)
	}
	// a look that is bounded says so
	if keys, seen, err = w.log.Mentioning(t.Context(), "g", "rollbackd.conflict", `, key "a-1")`, 1); err != nil ||
		len(keys) != 0 || seen.All {
		t.Errorf("bounded to 1: %v, %+v, %v; want nothing, and that not all was seen", keys, seen, err)
	}
}

func TestHoldingFindsBodiesInEveryStateThatKeepsOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var letters []Letter
	for i := range 2*MaxListed + 5 { // more than a page
		body := fmt.Sprintf(`{"order_sn":"A-%04d"}`, i)
		letters = append(letters, Letter{
			Entry: Entry{Identity: Identity{"g", "t", fmt.Sprint(i)}, Body: []byte(body)}, Reason: "permanent",
		})
	}
	if err := w.log.DeadAll(t.Context(), letters); err != nil {
		t.Fatal(err)
	}
	open := Identity{"g", "t", "open"}
	if _, err := w.log.Claim(t.Context(), absent(open), Entry{Identity: open, Body: []byte(`{"order_sn":"A-0007","n":1}`)},
		"owner"); err != nil {
		t.Fatal(err)
	}
	look := func(most int) (names []string, s Search) {
		s, err := w.log.Holding(t.Context(), "g", []Status{Processing, Dead}, [][]byte{[]byte("A-0007"), []byte("no such")},
			most, func(r Row) error {
				names = append(names, r.Key)
				if !strings.Contains(string(r.Body), "A-0007") {
					t.Errorf("row %v has body %q", r.Identity, r.Body)
				}
				return nil
			})
		if err != nil {
			t.Fatal(err)
		}
		return names, s
	}
	if names, s := look(10_000); !slices.Equal(names, []string{"open", "7"}) || s.Seen != len(letters)+1 || !s.All {
		t.Errorf("found %v, %+v; want open and 7 of all %d", names, s, len(letters)+1)
	}
	if _, s := look(1500); s.Seen != 1501 || s.All {
		t.Errorf("bounded to 1500 per state: %+v, want 1501 seen and not all", s)
	}
}

func TestGroupsAreListedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 6 {
		w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, "+
			"consumer_timestamp, created_at) VALUES (?, 't', ?, 1, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
			fmt.Sprint("g", i%3), fmt.Sprint(i))
	}
	for most, want := range map[int]int{10: 3, 2: 2} {
		if groups, err := w.log.Groups(t.Context(), most); err != nil || len(groups) != want {
			t.Errorf("at most %d: %v, %v; want %d", most, groups, err, want)
		}
	}
}

func TestAdoptionFilesALetterOnceAndSaysWho(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := Entry{Identity: Identity{"g", "t", "k"}, BodyHash: [32]byte{1}, Body: []byte("{}")}
	if err := w.log.Adopt(t.Context(), e, 0, "exhausted", "no row", "ann"); err != nil {
		t.Fatal(err)
	}
	row, story := w.read(e.Identity), w.events(e.Identity)
	if row.Status != Dead || row.Reason != "exhausted" || string(row.Body) != "{}" || row.DeadAt.IsZero() ||
		len(story) != 1 || story[0].By != "ann" || story[0].From != Absent {
		t.Errorf("row %+v, story %+v; want dead, exhausted, with its body, by ann", row, story)
	}
	if err := w.log.Adopt(t.Context(), e, 0, "exhausted", "no row", "ann"); err == nil {
		t.Error("a second adoption is no error; want ErrLost")
	}
}

func TestAdoptedSuccessEndsCopiesAndNeverOverwrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := Identity{"g", "t", "k"}
	if err := w.log.AdoptSuccess(t.Context(), w.pool, k, "ann", "released"); err != nil {
		t.Fatal(err)
	}
	row, story := w.read(k), w.events(k)
	if row.Status != Success || row.Attempts != 1 || row.BodyHash != nil || len(story) != 1 || story[0].By != "ann" ||
		time.Since(story[0].At).Abs() > time.Minute {
		t.Errorf("row %+v, story %+v; want success by ann", row, story)
	}
	if err := w.log.AdoptSuccess(t.Context(), w.pool, k, "ann", "released"); err == nil {
		t.Error("a second one is no error; want ErrExists")
	}
}
