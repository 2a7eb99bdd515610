package outbox_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
)

// standing puts one row of each kind, as relays leave them, and returns the rows.
func (w *world) standing() outbox.Rows {
	w.Helper()
	var all []outbox.Message
	for _, key := range []string{"parked", "refused", "due", "in hand", "in hand again", "stale"} {
		all = append(all, message(key, "{}"))
	}
	require.OK(w, w.put(append(all, outbox.Message{Tag: "t", Key: "waiting", Body: []byte("{}"), Delay: time.Hour},
		outbox.Message{Tag: "u", Key: "parked", Body: []byte("other"), ContentType: "text/plain",
			Headers: map[string]any{"a": 1}})...))
	for key, set := range map[string]string{
		"parked": "owner = 'x', tries = 9, failed_at = '2020-01-01', parked_at = '2020-01-02', reason = 'nobody', " +
			"next_at = '9999-12-31'",
		"refused": "owner = 'x', tries = 2, failed_at = UTC_TIMESTAMP(6), reason = 'no', next_at = next_at + " +
			"INTERVAL 1 MINUTE",
		"in hand":       "owner = 'x', next_at = next_at + INTERVAL 30 SECOND",
		"in hand again": "owner = 'x', tries = 1, failed_at = UTC_TIMESTAMP(6), next_at = next_at + INTERVAL 30 SECOND",
		"stale":         "owner = 'x', due_at = due_at - INTERVAL 1 HOUR, next_at = due_at",
	} {
		stack.Exec(w, w.db, "UPDATE rollbackd_outbox SET "+set+" WHERE msg_key = ?", key)
	}
	return outbox.Rows{DB: w.db}
}

// keys are those of all rows that a filter chooses, read in pages of two.
func (w *world) keys(r outbox.Rows, f outbox.Filter) (keys []string) {
	w.Helper()
	for after := ""; ; {
		page, next, err := r.List(w.Context(), f, after, 2)
		require.OK(w, err)
		for _, one := range page {
			keys = append(keys, one.Tag+"/"+one.Key)
		}
		if after = next; after == "" {
			slices.Sort(keys)
			return keys
		}
	}
}

func (w *world) same(what string, got, want any) {
	w.Helper()
	assert.That(w, fmt.Sprint(got) == fmt.Sprint(want), "%s: %v, want %v", what, got, want)
}

func TestAPersonSeesEveryRowByItsState(t *testing.T) {
	w := newWorld(t)
	r := w.standing()
	parked := []string{"t/parked", "u/parked"}
	for _, c := range []struct {
		f    outbox.Filter
		want []string
	}{
		{outbox.Filter{}, []string{"t/due", "t/in hand", "t/in hand again", "t/parked", "t/refused", "t/stale", "t/waiting",
			"u/parked"}},
		{outbox.Filter{State: outbox.Parked}, parked},
		{outbox.Filter{State: outbox.Waiting}, []string{"t/waiting"}},
		{outbox.Filter{State: outbox.Due}, []string{"t/due", "t/in hand", "t/stale"}},
		{outbox.Filter{State: outbox.Refused}, []string{"t/in hand again", "t/refused"}},
		{outbox.Filter{Tag: "u"}, []string{"u/parked"}},
		{outbox.Filter{Keys: []string{"parked", "none"}}, parked},
		{outbox.Filter{Until: time.Date(2020, 1, 3, 0, 0, 0, 0, time.UTC)}, parked},
		{outbox.Filter{Since: time.Date(2020, 1, 3, 0, 0, 0, 0, time.UTC), State: outbox.Parked}, nil},
	} {
		w.same(fmt.Sprintf("%+v", c.f), w.keys(r, c.f), c.want)
	}
	all := require.Get(r.Show(t.Context(), "", "parked"))(w)
	one := all[1]
	assert.That(t, string(one.Body) == "other" && one.Size == 5 && one.ContentType == "text/plain" &&
		string(one.Headers) == `{"a":1}` && one.Reason == "nobody" && one.Tries == 9 && one.Owner == "x" &&
		one.NextAt.IsZero() && !one.PutAt.IsZero(), "it is shown as %+v", one)
	s := require.Get(r.Survey(t.Context()))(w)
	assert.That(t, s.Waiting == 1 && s.Due == 3 && s.Refused == 2 && s.Parked == 2 && !s.More &&
		s.Lag.Round(time.Minute) == time.Hour && s.OldestParked.Year() == 2020, "the survey says %+v", s)
	_, _, err := r.List(t.Context(), outbox.Filter{}, "nonsense", 2)
	assert.That(t, errors.Is(err, outbox.ErrCursor), "a cursor that is none: %v", err)
}

func TestRetrySendsWhatIsParkedOrRefusedAndKeepsWhatMayHaveBeenSent(t *testing.T) {
	w := newWorld(t)
	r := w.standing()
	dry := require.Get(r.Retry(t.Context(), outbox.Filter{}, outbox.Change{DryRun: true}))(w)
	done := require.Get(r.Retry(t.Context(), outbox.Filter{}, outbox.Change{}))(w)
	assert.That(t, done.Changed == 3 && done.Left == 1 && dry.Changed == 3 && dry.Left == 1, "retried %+v, announced %+v",
		done, dry)
	w.same("still parked", w.keys(r, outbox.Filter{State: outbox.Parked}), []string{})
	all := require.Get(r.Show(t.Context(), "t", "parked"))(w)
	one := all[0]
	assert.That(t, one.Owner == "x" && one.Tries == 0 && one.State == outbox.Due && one.Reason == "" &&
		!one.NextAt.After(time.Now().Add(time.Minute)), "retried, the row is %+v", one)
	assert.That(t, !w.cancel("t", "parked"), "what was sent, perhaps, can be cancelled in time after a retry")
}

func TestDropDeletesNothingThatARelayHasInHandAndWaitsForNobody(t *testing.T) {
	w := newWorld(t)
	r := w.standing()
	tx := require.Get(w.db.BeginTx(t.Context(), nil))(w)
	defer func() { _ = tx.Rollback() }()
	require.OK(w, outbox.Put(t.Context(), tx, outbox.Message{Tag: "u", Key: "parked", Body: []byte("other")}))
	done := require.Get(r.Drop(t.Context(), outbox.Filter{}, outbox.Change{}))(w)
	assert.That(t, done.Changed == 1 && done.Left == 1 && len(done.Rows) == 1 && done.Rows[0].Reason == "nobody",
		"dropped %+v", done)
	require.OK(w, tx.Rollback())
	seen := 0
	done = require.Get(r.Drop(t.Context(), outbox.Filter{}, outbox.Change{Force: true,
		Progress: func(n int) { seen = n }}))(w)
	w.same("by force", []int{done.Changed, done.Left, seen}, []int{5, 2, 7})
	w.same("left", w.keys(r, outbox.Filter{}), []string{"t/in hand", "t/in hand again"})
}

func TestAChangeOfManyRowsIsMadeInPieces(t *testing.T) {
	w := newWorld(t)
	var all []outbox.Message
	for i := range 1050 {
		all = append(all, message(fmt.Sprint(i), "{}"))
	}
	require.OK(w, w.put(all...))
	r := outbox.Rows{DB: w.db}
	done := require.Get(r.Drop(t.Context(), outbox.Filter{Tag: "t"}, outbox.Change{Force: true}))(w)
	w.same("dropped, named, left", []int{done.Changed, len(done.Rows), len(w.rows())}, []int{1050, 100, 0})
}

func TestASchemaWithoutAnOutboxSaysSo(t *testing.T) {
	t.Parallel()
	g := require.First(mysqldb.Open(t.Context(), stack.MySQL(t), mysqldb.Options{}))(t)
	db := require.Get(g.DB())(t)
	defer db.Close()
	_, err := (outbox.Rows{DB: db}).Survey(t.Context())
	assert.That(t, errors.Is(err, outbox.ErrNoTable), "a survey of no outbox: %v", err)
	tx := require.Get(db.BeginTx(t.Context(), nil))(t)
	defer func() { _ = tx.Rollback() }()
	err = outbox.Put(t.Context(), tx, outbox.Message{Tag: "t", Key: "k", Value: 1})
	assert.That(t, err != nil && strings.Contains(err.Error(), "migrate --outbox"), "a put into no outbox: %v", err)
}
