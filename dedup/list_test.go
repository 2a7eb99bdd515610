package dedup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func (w *world) list(f Filter) (all []Row, pages int) {
	w.t.Helper()
	for {
		rows, next, err := w.log.List(w.t.Context(), f)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, rows...)
		pages++
		if next == "" {
			return all, pages
		}
		if len(rows) == 0 {
			w.t.Fatal("an empty page with a next one")
		}
		f.After = next
	}
}

func TestListPagesThroughEverythingOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for i := range 200 { // many rows share a time
		k := Identity{"g", fmt.Sprint("t", i%3), fmt.Sprint("k", i)}
		w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, "+
			"consumer_timestamp, created_at)"+
			" VALUES (?, ?, ?, ?, 1, '2026-11-21 12:00:00' - INTERVAL ? MINUTE, UTC_TIMESTAMP(6))",
			append(keyArgs(k), i%5, i/20)...)
	}
	for _, limit := range []int{1, 7, 100, 1000} {
		all, _ := w.list(Filter{Group: "g", Limit: limit})
		seen := map[Identity]bool{}
		for i, r := range all {
			seen[r.Identity] = true
			if i > 0 && (r.Status < all[i-1].Status || r.Status == all[i-1].Status && r.At.After(all[i-1].At)) {
				t.Errorf("limit %d: %v after %v", limit, r, all[i-1])
			}
		}
		if len(all) != 200 || len(seen) != 200 {
			t.Errorf("limit %d: %d rows, %d of them different, want 200", limit, len(all), len(seen))
		}
	}
	if all, pages := w.list(Filter{Group: "g", Limit: 40, Statuses: []Status{Dead}}); len(all) != 40 || pages != 1 {
		t.Errorf("a page that holds all: %d rows on %d pages", len(all), pages)
	}
	if all, _ := w.list(Filter{Group: "g", Since: noon.Add(-3 * time.Minute), Until: noon}); len(all) != 60 {
		t.Errorf("since and until: %d rows, want 60", len(all))
	}
}

func TestALookFindsWhatAListFindsThoughItStopsInBetween(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all []Letter
	for i := range 200 {
		reason, cause := ReasonExhausted, "shelf is locked"
		if i%17 == 0 {
			reason, cause = ReasonPermanent, "no such order"
		}
		all = append(all, Letter{Entry: Entry{Identity: Identity{"g", "t", fmt.Sprint("k", i)}, Body: []byte("{}")},
			Reason: reason, Cause: cause})
	}
	wantError(t, "file letters", w.log.DeadAll(t.Context(), all), nil)
	odd := func(r Row) bool { return strings.HasSuffix(r.Key, "1") }
	for name, tc := range map[string]struct {
		f    Filter
		also func(Row) bool
		want int
	}{
		"by reason": {Filter{Reasons: []Reason{ReasonPermanent}}, nil, 12},
		"by remark": {Filter{Remark: "such"}, nil, 12},
		"the dead":  {Filter{Remark: "such", Statuses: []Status{Dead}}, nil, 12},
		"oldest":    {Filter{Remark: "such", Statuses: []Status{Dead}, Oldest: true}, nil, 12},
		"of a tag":  {Filter{Remark: "such", Statuses: []Status{Dead}, Tag: "t"}, nil, 12},
		"no other":  {Filter{Remark: "such", Statuses: []Status{Dead}, Tag: "x"}, nil, 0},
		"by more":   {Filter{}, odd, 20},
		"by both":   {Filter{Remark: "shelf"}, odd, 19},
		"by keys":   {Filter{Keys: []string{"k0", "k1"}, Remark: "such"}, nil, 1},
	} {
		for limit, through := range map[int]int{1: 30, 5: 30, 7: 0, 1000: 30} {
			f, seen, most := tc.f, map[string]bool{}, 300
			f.Group, f.Limit = "g", limit
			for next := Cursor("-"); next != "" && most > 0; most-- {
				rows, end, err := w.log.Look(t.Context(), f, through, tc.also)
				if err != nil || len(rows) > limit {
					t.Fatalf("%s, %d a page: %d rows, %v", name, limit, len(rows), err)
				}
				for _, r := range rows {
					if seen[r.Key] {
						t.Errorf("%s, %d a page: %s comes again", name, limit, r.Key)
					}
					seen[r.Key] = true
				}
				next, f.After = end, end
			}
			if len(seen) != tc.want || most == 0 {
				t.Errorf("%s, %d a page: %d rows, want %d", name, limit, len(seen), tc.want)
			}
		}
	}
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	put := func(k Identity, s Status, reason any) {
		w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, reason, "+
			"consumer_timestamp, created_at)"+
			" VALUES (?, ?, ?, ?, 1, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))", append(keyArgs(k), int(s), reason)...)
	}
	put(Identity{"g", "a", "1"}, Dead, "permanent")
	put(Identity{"g", "a", "2"}, Dead, "crashed")
	put(Identity{"g", "b", "1"}, Failed, nil)
	put(Identity{"g", "b", "3"}, Success, nil)
	put(Identity{"other", "a", "1"}, Dead, "permanent")
	for _, c := range []struct {
		f    Filter
		want []string
	}{
		{Filter{}, []string{"a/1", "a/2", "b/1", "b/3"}},
		{Filter{Keys: []string{"1"}}, []string{"a/1", "b/1"}},
		{Filter{Keys: []string{"1"}, Tag: "b"}, []string{"b/1"}},
		{Filter{Keys: []string{"9"}}, nil},
		{Filter{Tag: "a"}, []string{"a/1", "a/2"}},
		{Filter{Reasons: []Reason{"crashed"}}, []string{"a/2"}},
		{Filter{Statuses: []Status{Failed, Success, Failed}}, []string{"b/1", "b/3"}},
	} {
		c.f.Group = "g"
		rows, _ := w.list(c.f)
		var got []string
		for _, r := range rows {
			got = append(got, r.Tag+"/"+r.Key)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.f, got, c.want)
		}
	}
	if rows, _ := w.list(Filter{Group: "nobody", Keys: []string{"1"}}); len(rows) != 0 {
		t.Errorf("an unknown group: %v", rows)
	}
}

func TestListRefusesNonsense(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, f := range []Filter{{}, {Group: "g", Limit: -1}, {Group: "g", Limit: MaxListed + 1}} {
		if _, _, err := w.log.List(t.Context(), f); err == nil {
			t.Errorf("%+v was taken", f)
		}
	}
	for _, c := range []Cursor{"!", "e30x", "bm9wZQ"} {
		if _, _, err := w.log.List(t.Context(), Filter{Group: "g", After: c}); !errors.Is(err, ErrCursor) {
			t.Errorf("cursor %q = %v", c, err)
		}
	}
}

func TestListAndGaugesUseAnIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wantError(t, "insert", w.insertSuccess(entries(10_000)...), nil)
	var letters []Letter
	for i := range 50 {
		letters = append(letters, Letter{entryOf(key(fmt.Sprint("dead ", i))), "malformed", ""})
	}
	wantError(t, "dead", w.log.DeadAll(t.Context(), letters), nil)
	w.exec("ANALYZE TABLE consumer_log")
	for name, c := range map[string]struct {
		f    Filter
		from *pageEnd
	}{
		"by status":        {Filter{}, nil},
		"a later page":     {Filter{}, &pageEnd{Dead, time.Now().UnixMicro(), []byte("t"), []byte("dead 3")}},
		"by tag":           {Filter{Tag: "t"}, nil},
		"by reason":        {Filter{Reasons: []Reason{"malformed"}}, nil},
		"by key":           {Filter{Keys: []string{"dead 3"}}, nil},
		"by key and tag":   {Filter{Keys: []string{"dead 3"}, Tag: "t"}, nil},
		"since yesterday":  {Filter{Since: time.Now().Add(-24 * time.Hour)}, nil},
		"until long after": {Filter{Until: time.Now().Add(24 * time.Hour)}, nil},
		"down to a row": {
			Filter{Remark: "x", upTo: &pageEnd{Dead, time.Now().Add(-time.Hour).UnixMicro(), []byte("t"), []byte("dead 4")}},
			&pageEnd{Dead, time.Now().UnixMicro(), []byte("t"), []byte("dead 3")},
		},
	} {
		c.f.Group = "g"
		wantError(t, name, w.log.complete(t.Context(), &c.f), nil)
		s := w.log.listText(c.f, rowColumns, Dead, c.from, 100)
		w.wantIndexed(name, 200, s.String(), s.args...)
	}
	ages, err := w.log.OldestOpen(t.Context())
	if err != nil || len(ages) != 1 || ages[Dead] < 0 || ages[Dead] > time.Minute {
		t.Errorf("oldest open: %v, %v", ages, err)
	}
}
