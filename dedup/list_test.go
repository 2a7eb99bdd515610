package dedup

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// pages reads all pages of a filter, and says how many rows came twice.
func (w *world) pages(f Filter, page func(Filter) ([]Row, Cursor, error)) (all []Row) {
	w.t.Helper()
	seen := map[Identity]bool{}
	for pages := 0; pages < 300; pages++ {
		rows, next, err := page(f)
		require.That(w.t, err == nil && (f.Limit <= 0 || len(rows) <= f.Limit), "%+v: %d rows, %v", f, len(rows), err)
		for _, r := range rows {
			assert.That(w.t, !seen[r.Identity], "%+v: %v comes again", f, r.Identity)
			seen[r.Identity] = true
		}
		if all = append(all, rows...); next == "" {
			return all
		}
		f.After = next
	}
	w.t.Fatalf("%+v has no end", f)
	return nil
}

func (w *world) list(f Filter) []Row {
	w.t.Helper()
	return w.pages(f, func(f Filter) ([]Row, Cursor, error) { return w.log.List(w.t.Context(), f) })
}

func TestListPagesThroughEverythingOnce(t *testing.T) {
	w := newWorld(t)
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var rows []Row
	for i := range 200 { // many rows share a time
		rows = append(rows, Row{Identity: Identity{"g", fmt.Sprint("t", i%3), fmt.Sprint("k", i)},
			Version: Version{Status: Status(i % 5)}, At: noon.Add(-time.Duration(i/20) * time.Minute)})
	}
	w.put(rows...)
	for _, limit := range []int{1, 7, 100, 1000} {
		all := w.list(Filter{Group: "g", Limit: limit})
		assert.That(t, len(all) == 200 && slices.IsSortedFunc(all, func(a, b Row) int {
			return 2*int(a.Status-b.Status) + b.At.Compare(a.At)
		}), "limit %d: %d rows, or out of order", limit, len(all))
	}
	dead := Filter{Group: "g", Limit: 40, Statuses: []Status{Dead}}
	rows, next, err := w.log.List(t.Context(), dead)
	assert.That(t, len(rows) == 40 && next == "" && err == nil, "a full page: %d rows, then %q, %v", len(rows), next, err)
	assert.Is(t, len(w.list(Filter{Group: "g", Since: noon.Add(-3 * time.Minute), Until: noon})), 60,
		"since and until: rows")
}

func TestALookFindsWhatAListFindsThoughItStopsInBetween(t *testing.T) {
	w := newWorld(t)
	var all []Death
	for i := range 200 {
		d := deathOf(fmt.Sprint("k", i))
		if i%17 != 0 {
			d.Reason, d.Cause = ReasonExhausted, "shelf is locked"
		}
		all = append(all, d)
	}
	w.dead(all...)
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
			tc.f.Group, tc.f.Limit = "g", limit
			found := w.pages(tc.f, func(f Filter) ([]Row, Cursor, error) { return w.log.Look(t.Context(), f, through, tc.also) })
			assert.Is(t, len(found), tc.want, "%s, %d a page: rows", name, limit)
		}
	}
}

// Given rows of all kinds, with bodies of many writers, when they are chosen by what they are or what their bodies say,
// then the database chooses what Go does, and what a person would; a list and a look find the same.
func TestRowsAreChosenByWhatTheyAreAndWhatTheirBodiesSay(t *testing.T) {
	w := newWorld(t)
	w.put(Row{Identity: Identity{"kinds", "a", "1"}, Version: Version{Status: Dead}, Reason: "permanent"},
		Row{Identity: Identity{"kinds", "a", "2"}, Version: Version{Status: Dead}, Reason: "crashed"},
		Row{Identity: Identity{"kinds", "b", "1"}, Version: Version{Status: Failed}},
		Row{Identity: Identity{"kinds", "b", "3"}, Version: Version{Status: Success}},
		Row{Identity: Identity{"other", "a", "1"}, Version: Version{Status: Dead}, Reason: "permanent"})
	bodies := map[string]string{
		"compact":   `{"order_sn":"A-1","items":[{"sku_id":1001,"quantity":2},{"sku_id":7,"quantity":1}]}`,
		"spaced":    "{ \"order_sn\" : \"A-1\",\n \"items\" : [ { \"sku_id\" : 1001 , \"quantity\" : 2 } ] }",
		"as text":   `{"order_sn":"A-12","sku_id":"1001"}`,
		"longer":    `{"order_sn":"A-1x","sku_id":10010,"note":"1001 A-1"}`,
		"fraction":  `{"order_sn":"a-1","sku_id":1001.5}`,
		"broken":    `{"order_sn":"A-1","sku_id":1001}{`,
		"unicode":   `{"order_sn":"Größe/1"}`,
		"escaped":   `{"order_sn":"Gr\u00f6\u00dfe\/1"}`,
		"a.b":       `{"order_sn":"a.b"}`,
		"dots":      `{"order_sn":"axb"}`,
		"latin":     "{\"order_sn\":\"Gr\xf6\xdfe\"}",
		"A-1":       `{}`,
		"long":      `{"order_sn":20261121000112345678}`,
		"in a text": `{"note":"\"sku_id\":1001}"}`,
	}
	for name, body := range bodies {
		w.put(Row{Identity: Identity{"g", "t", name}, Version: Version{Status: Dead}, Body: []byte(body)})
	}
	sku := func(n string) []Field { return []Field{{Name: "sku_id", Value: n}} }
	order := func(sn string) []Field { return []Field{{Name: "order_sn", Value: sn, OrKey: true}} }
	for _, c := range []struct {
		f    Filter
		want []string
	}{
		{Filter{Group: "kinds"}, []string{"1", "1", "2", "3"}},
		{Filter{Group: "kinds", Keys: []string{"1"}}, []string{"1", "1"}},
		{Filter{Group: "kinds", Keys: []string{"1"}, Tag: "b"}, []string{"1"}},
		{Filter{Group: "kinds", Keys: []string{"9"}}, nil},
		{Filter{Group: "nobody", Keys: []string{"1"}}, nil},
		{Filter{Group: "kinds", Tag: "a"}, []string{"1", "2"}},
		{Filter{Group: "kinds", Reasons: []Reason{"crashed"}}, []string{"2"}},
		{Filter{Group: "kinds", Statuses: []Status{Failed, Success, Failed}}, []string{"1", "3"}},
		{Filter{Fields: sku("1001")}, []string{"as text", "broken", "compact", "spaced"}},
		{Filter{Fields: sku("7")}, []string{"compact"}},
		{Filter{Fields: order("A-1")}, []string{"A-1", "broken", "compact", "spaced"}},
		{Filter{Fields: append(order("A-1"), sku("7")...)}, []string{"compact"}},
		{Filter{Fields: order("Größe/1")}, []string{"escaped", "unicode"}},
		{Filter{Fields: order("a.b")}, []string{"a.b"}},
		{Filter{Fields: order("20261121000112345678")}, []string{"long"}},
		{Filter{Body: "quantity\":1"}, []string{"compact"}},
		{Filter{Body: "Gr\xf6"}, []string{"latin"}},
		{Filter{Body: "a-1"}, []string{"fraction"}},
	} {
		if c.f.Group == "" {
			c.f.Group, c.f.Statuses = "g", []Status{Dead}
			var inGo []string
			for key, body := range bodies {
				in := strings.Contains(body, c.f.Body)
				for _, f := range c.f.Fields {
					in = in && f.In(key, []byte(body))
				}
				if in {
					inGo = append(inGo, key)
				}
			}
			assert.Equal(t, slices.Sorted(slices.Values(inGo)), c.want, "%+v: Go chose", c.f)
		}
		looked := w.pages(c.f, func(f Filter) ([]Row, Cursor, error) { return w.log.Look(t.Context(), f, 1000, nil) })
		for how, rows := range map[string][]Row{"list": w.list(c.f), "look": looked} {
			names := mapped(rows, func(r Row) string { return r.Key })
			assert.Equal(t, slices.Sorted(slices.Values(names)), c.want, "%+v: %s chose", c.f, how)
		}
	}
	for most, want := range map[int][]string{10: {"g", "kinds", "other"}, 2: {"g", "kinds"}} {
		assert.Equal(t, require.Get(w.log.Groups(t.Context(), most))(t), want, "at most %d groups", most)
	}
	for _, f := range []Filter{{}, {Group: "g", Limit: -1}, {Group: "g", Limit: MaxListed + 1}} {
		_, _, err := w.log.List(t.Context(), f)
		assert.That(t, err != nil, "%+v was taken", f)
	}
	for _, c := range []Cursor{"!", "e30x", "bm9wZQ"} {
		_, _, err := w.log.List(t.Context(), Filter{Group: "g", After: c})
		assert.That(t, errors.Is(err, ErrCursor), "cursor %q = %v", c, err)
	}
}

func TestMentioningFindsAnOriginalByRemarkAndByStory(t *testing.T) {
	w := newWorld(t)
	file := func(name, cause string) Identity {
		k := Identity{"g", "rollbackd.conflict", name}
		w.dead(Death{Entry: Entry{Identity: k, Body: []byte("{}")}, Reason: "conflict", Cause: cause})
		return k
	}
	// given three conflicts, of which one has another remark by now
	a, b := file("sha256:a", `taken (tag "t", key "A-1")`), file("sha256:b", `taken (tag "t", key "A-1")`)
	file("sha256:c", `taken (tag "t", key "a-1")`)
	assert.OK(t, w.log.Discard(t.Context(), w.read(b), Entry{Identity: b}, "ann", "a test"))
	for _, c := range []struct {
		text string
		most int
		want []Identity
		all  bool
	}{{`, key "A-1")`, 1000, []Identity{a, b}, true}, {`, key "a-1")`, 1, nil, false}} {
		keys, seen, err := w.log.Mentioning(t.Context(), "g", "rollbackd.conflict", c.text, c.most)
		assert.That(t, err == nil && slices.Equal(keys, c.want) && seen.All == c.all,
			"%s, at most %d: %v, %+v, %v; want %v, all %v", c.text, c.most, keys, seen, err, c.want, c.all)
	}
}

func TestHoldingFindsBodiesInEveryStateThatKeepsOne(t *testing.T) {
	w := newWorld(t)
	var rows []Row
	for i := range 2*MaxListed + 5 { // more than a page
		rows = append(rows, Row{Identity: key(fmt.Sprint(i)), Version: Version{Status: Dead},
			Body: fmt.Appendf(nil, `{"order_sn":"A-%04d"}`, i), Age: time.Duration(i) * time.Millisecond})
	}
	w.put(rows...)
	w.put(Row{Identity: key("open"), Version: Version{Status: Processing}, Body: []byte(`{"order_sn":"A-0007","n":1}`)})
	for most, want := range map[int]Search{10_000: {len(rows) + 1, true}, 1500: {1501, false}} {
		var names []string
		s, err := w.log.Holding(t.Context(), "g", []Status{Processing, Dead}, [][]byte{[]byte("A-0007"), []byte("no such")},
			most, func(r Row) error {
				names = append(names, r.Key)
				return nil
			})
		assert.That(t, err == nil && slices.Equal(names, []string{"open", "7"}) && s == want,
			"at most %d: found %v, %+v, %v; want open and 7, %+v", most, names, s, err, want)
	}
}

func TestCountReasonsCountsWhatTheFilterChooses(t *testing.T) {
	w := newWorld(t)
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	for i, reason := range []Reason{"permanent", "exhausted", "permanent", "permanent"} {
		w.put(Row{Identity: Identity{"g", fmt.Sprint("t", i%2), fmt.Sprint(i)}, Version: Version{Status: Dead},
			Reason: reason, At: at(i)})
	}
	w.put(Row{Identity: Identity{"other", "t0", "k"}, Version: Version{Status: Dead}, Reason: "permanent"},
		Row{Identity: Identity{"g", "t0", "failed"}, Version: Version{Status: Failed}})
	exhausted := ReasonCount{"exhausted", 1, at(1), at(1)}
	for _, c := range []struct {
		f    Filter
		want []ReasonCount
	}{
		{Filter{}, []ReasonCount{{"permanent", 3, noon, at(3)}, exhausted}},
		{Filter{Tag: "t0"}, []ReasonCount{{"permanent", 2, noon, at(2)}}},
		{Filter{Reasons: []Reason{"exhausted"}, Limit: 5000}, []ReasonCount{exhausted}},
		{Filter{Keys: []string{"0", "3"}, Since: noon.Add(time.Second)}, []ReasonCount{{"permanent", 1, at(3), at(3)}}},
		{Filter{Until: noon}, []ReasonCount{}},
	} {
		c.f.Group = "g"
		got, err := w.log.CountReasons(t.Context(), c.f)
		diff := cmp.Diff(c.want, got)
		assert.That(t, err == nil && diff == "", "%+v: %v, (-want +got)\n%s", c.f, err, diff)
	}
}

func TestTheOldestRowOfEachStateThatWaits(t *testing.T) {
	w := newWorld(t)
	for i, age := range []time.Duration{time.Hour, 3 * time.Hour, 2 * time.Hour} {
		for _, status := range []Status{Success, Failed, Dead, Discarded} {
			name := fmt.Sprint(status, i)
			w.put(Row{Identity: key(name), Version: Version{Status: status}, Age: age},
				Row{Identity: Identity{"other", "t", name}, Version: Version{Status: status}, Age: 24 * time.Hour})
		}
	}
	oldest := require.Get(w.log.Oldest(t.Context(), "g"))(t)
	ages := require.Get(w.log.OldestOpen(t.Context()))(t)
	require.Is(t, [2]int{len(oldest), len(ages)}, [2]int{2, 2}, "one failed, one dead: of %v and %v", oldest, ages)
	for _, status := range []Status{Failed, Dead} {
		r := oldest[status]
		assert.That(t, r.Key == fmt.Sprint(status, 1) && r.Age.Truncate(time.Hour) == 3*time.Hour &&
			ages[status].Truncate(time.Hour) == 24*time.Hour,
			"the oldest in %v is %v, %v old, of all groups %v; want number 1, 3h, 24h", status, r.Identity, r.Age, ages[status])
	}
}

func TestTheEventFeedIsReadInItsOrderAndFromTheBookmarkOn(t *testing.T) {
	w := newWorld(t)
	w.dead(deathOf("old")) // before anybody asked
	at := require.Get(w.log.Bookmark(t.Context(), "g"))(t)
	require.Get(w.log.Reopen(t.Context(), w.dead(deathOf("a")), entryOf(key("a")), ReplayNote{By: "me", Token: "r"}))(t)
	feed := require.Get(w.log.EventFeed(t.Context(), at, 10))(t)
	want := []Event{{Identity: key("a"), From: Absent, To: Dead, Error: "no such order"}, {Identity: key("a"), From: Dead,
		To: Failed, Replays: 1, By: "me", Owner: "r", Error: "replayed"}}
	diff := cmp.Diff(want, feed, cmpopts.IgnoreFields(Event{}, "ID", "At", "Age"))
	require.That(t, diff == "", "feed (-want +got):\n%s", diff)
	assert.That(t, feed[0].ID > at && feed[1].ID > feed[0].ID, "ids %d and %d after %d do not grow", feed[0].ID,
		feed[1].ID, at)
	some, err := w.log.EventFeed(t.Context(), at, 1)
	assert.That(t, err == nil && len(some) == 1, "one of them: %v, %v", some, err)
	// then the bookmark moves on, and never back; ten is more than nine, as a number; every group has its own
	last, other := feed[1].ID, strings.Repeat("x", MaxGroup)
	for _, move := range []struct{ to, at int64 }{{last, last}, {feed[0].ID, last}, {9_999_999, 9_999_999},
		{10_000_000, 10_000_000}} {
		assert.OK(t, w.log.MoveBookmark(t.Context(), "g", move.to))
		assert.Is(t, require.Get(w.log.Bookmark(t.Context(), "g"))(t), move.at, "the bookmark is at")
	}
	assert.Is(t, require.Get(w.log.Bookmark(t.Context(), other))(t), last, "another group begins at")
}

func TestAnIdentityIsLoggedInItsParts(t *testing.T) {
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("m", "msg_key", key("k 1"))
	assert.Has(t, out.String(), `msg_key.group=g msg_key.tag=t msg_key.key="k 1"`, "lacks")
}

// Given a pool of the caller's own, which reads times as it likes, stands on another clock and isolates by REPEATABLE
// READ, where workers that insert neighbouring keys deadlock, then the log's times are the database's in UTC, and its
// transactions read what is committed.
func TestTheLogIsTheSameOnAnyPool(t *testing.T) {
	w := newWorld(t)
	plain, err := sql.Open("mysql", w.dsn) // without parseTime, with the server's time zone
	assert.OK(t, err)
	defer plain.Close()
	plain.SetMaxOpenConns(1)
	for _, text := range []string{"SET time_zone = '+05:00'", "SET timestamp = UNIX_TIMESTAMP('2031-02-03 04:05:06.5')"} {
		require.Get(plain.Exec(text))(t)
	}
	other := *w.log
	other.db = plain
	k := key("k")
	require.Get(other.Claim(t.Context(), absent(k), entryOf(k), "a"))(t)
	want := time.Date(2031, 2, 2, 23, 5, 6, 500_000_000, time.UTC)
	for _, l := range []*Log{w.log, &other} {
		row, err := l.Read(t.Context(), k)
		assert.That(t, err == nil && row.At.Equal(want) && row.CreatedAt.Equal(want) && row.At.Location() == time.UTC,
			"read %v at %v, created %v, want %v", err, row.At, row.CreatedAt, want)
	}
	assert.OK(t, other.inTx(t.Context(), func(tx Execer) error {
		for want := 1; want <= 2; want++ {
			keys, err := list(t.Context(), tx, sqlOf("SELECT msg_key FROM consumer_log"), value[string])
			assert.That(t, err == nil && len(keys) == want, "the transaction sees %v, %v; want %d rows", keys, err, want)
			w.claimAt(key("another"))
		}
		return nil
	}))
}

func TestNewLogRefusesWhatCannotWork(t *testing.T) {
	db := worldOf(t, "u:p@tcp(127.0.0.1:1)/d", OpenOptions{}).db
	for name, spoil := range map[string]func(*LogOptions){
		"table":       func(o *LogOptions) { o.Table = "a`b" },
		"lease":       func(o *LogOptions) { o.Lease = 0 },
		"no delays":   func(o *LogOptions) { o.Delays = nil },
		"zero delay":  func(o *LogOptions) { o.Delays = []time.Duration{0} },
		"no attempts": func(o *LogOptions) { o.MaxAttempts = 0 },
	} {
		o := testOptions // which are good
		spoil(&o)
		_, err := NewLog(db, o)
		assert.That(t, err != nil, "%s: %+v was taken", name, o)
	}
}
