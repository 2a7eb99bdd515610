package deadletter_test

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

const (
	group   = letters.Group
	tag     = letters.Tag
	keyFrom = letters.KeyFrom
	lease   = letters.Lease
)

var (
	all = deadletter.Filter{All: true}

	message  = letters.Message
	identity = letters.Identity
	entry    = letters.Entry
	absent   = letters.Absent
	names    = letters.Names
)

// world is a fresh log and a fresh set of queues.
type world struct {
	*letters.World

	dsn, amqpURL string // of what Letters uses; a test may lead them through a proxy
	keyFrom      string
	most         int // replays
	hook         func(deadletter.Point) error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := letters.New(t)
	return &world{World: w, dsn: w.DSN, amqpURL: w.Broker.URL, keyFrom: keyFrom}
}

// letters is what is tested, over connections of its own.
func (w *world) letters() *deadletter.Letters {
	w.T.Helper()
	db, _ := w.Open(w.dsn, letters.Quick)
	o := letters.Options(w.Log(db), w.amqpURL, w.Queue)
	o.KeyFrom, o.MaxReplays = w.keyFrom, w.most
	l := require.Get(deadletter.New(o))(w.T)
	if w.hook != nil {
		l.Hook(w.hook)
	}
	return l
}

var errKilled = errors.New("killed")

// killAt ends runs after this step, as a kill would.
func (w *world) killAt(point deadletter.Point) {
	w.hook = func(p deadletter.Point) error {
		if p == point {
			return errKilled
		}
		return nil
	}
}

var (
	plain deadletter.ReplayOptions
	force = deadletter.ReplayOptions{Force: true}
	dry   = deadletter.ReplayOptions{DryRun: true}
)

// tries replays over connections of its own.
func (w *world) tries(of deadletter.Selection, o deadletter.ReplayOptions) (deadletter.Result, error) {
	w.T.Helper()
	o.By = "tester"
	return w.letters().Replay(w.T.Context(), of, o)
}

// replay ends as tally says, if it is given.
func (w *world) replay(of deadletter.Selection, o deadletter.ReplayOptions, tally ...string) deadletter.Result {
	w.T.Helper()
	res, err := w.tries(of, o)
	require.That(w.T, err == nil, "Replay: %v (%+v)", err, res)
	w.wantTally(res, tally...)
	return res
}

// wantTally wants a result to count this and nothing else of what becomes of letters, as "replayed 2, parked 1".
func (w *world) wantTally(res deadletter.Result, tally ...string) {
	w.T.Helper()
	for _, want := range tally {
		var have []string
		for i, n := range []int{res.Replayed, res.Mended, res.Discarded, res.Stale, res.Duplicates, res.NotSelected,
			res.Later, res.Unseen, res.Applied, res.FailedAgain, res.Unsettled, res.Parked, len(res.Left)} {
			if n > 0 {
				have = append(have, fmt.Sprint([]string{"replayed ", "mended ", "discarded ", "stale ", "duplicates ",
					"not selected ", "later ", "unseen ", "applied ", "failed again ", "unsettled ", "parked ", "left "}[i], n))
			}
		}
		for _, left := range res.Left {
			have = append(have, string(left.Why))
		}
		assert.Is(w.T, strings.Join(have, ", "), want, "%+v", res)
	}
}

// killedAt is a replay that ends after this step.
func (w *world) killedAt(point deadletter.Point, of deadletter.Selection) {
	w.T.Helper()
	w.killAt(point)
	_, err := w.tries(of, plain)
	require.Is(w.T, errors.Is(err, errKilled), true, "the replay, %v, ends by the kill", err)
	w.hook = nil
}

func byKeys(keys ...string) deadletter.Filter { return deadletter.Filter{Keys: keys} }

func ofReason(reason dedup.Reason) deadletter.Filter {
	return deadletter.Filter{Reasons: []dedup.Reason{reason}}
}

func (w *world) wantRow(id dedup.Identity, status dedup.Status, replays int) {
	w.T.Helper()
	row := w.RowOf(id)
	assert.Is(w.T, fmt.Sprint(row.Status, " ", row.Replays), fmt.Sprint(status, " ", replays), "row of %v, replays", id)
}

func (w *world) events(id dedup.Identity) []dedup.Event {
	w.T.Helper()
	return require.Get(w.Records.Events(w.T.Context(), id))(w.T)
}

// conflict is a message of a key that another body has, and under what it is filed.
func (w *world) conflict(key, body string) (rabbit.Delivery, wire.Identified) {
	d := message(key, body)
	id, _ := wire.Conflict(w.Identify(d), d.Body)
	return d, id
}

// put publishes the letter of a message to the dead-letter queue; its row is the caller's business.
func (w *world) put(d rabbit.Delivery, id wire.Identified, o wire.CopyOptions) {
	w.T.Helper()
	o.Identity, o.Error = id, "shelf is locked"
	o.Reason = cmp.Or(o.Reason, dedup.ReasonExhausted)
	w.Must(w.Publisher.Publish(w.T.Context(), []rabbit.Publishing{{
		Key: rabbit.DeadQueue(w.Queue), Message: wire.Copy(d, w.Queue, o),
	}})...)
}

// letter puts a letter of an ordinary message, without a row.
func (w *world) letter(key string) {
	w.T.Helper()
	d := message(key, "{}")
	w.put(d, w.Identify(d), wire.CopyOptions{Attempt: 3})
}

// dead makes letters with their rows, in one go, a second ago.
func (w *world) dead(reason dedup.Reason, keys ...string) *world {
	w.T.Helper()
	w.Dead(reason, "no", keys...)
	return w
}

// deadMany makes n letters with their rows, named as names("k", n) does.
func (w *world) deadMany(reason dedup.Reason, n int) *world {
	w.T.Helper()
	return w.dead(reason, names("k", n)...)
}

// inState gives a key's row a state.
func (w *world) inState(key string, status dedup.Status) {
	w.T.Helper()
	ctx := w.T.Context()
	d := message(key, "{}")
	e := entry(w.Identify(d), d)
	none := absent(e.Identity)
	var err error
	switch status {
	case dedup.Absent:
	case dedup.Success:
		err = w.Records.InsertSuccess(ctx, w.Pool, []dedup.Entry{e})
	case dedup.Processing, dedup.Failed:
		var claim dedup.Claim
		claim, err = w.Records.Claim(ctx, none, e, "host/1/1/"+key)
		if err == nil && status == dedup.Failed {
			_, errs := w.Records.FailAll(ctx, []dedup.Failure{{Claim: claim, Cause: "shelf is locked"}})
			err = errs[0]
		}
	case dedup.Dead:
		err = w.Records.Dead(ctx, none, e, dedup.ReasonExhausted, "shelf is locked")
	case dedup.Discarded:
		err = w.Records.Discard(ctx, none, e, "somebody", "test")
	}
	w.Must(err)
}

func TestMain(m *testing.M) { stack.Main(m) }
