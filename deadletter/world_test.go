package deadletter_test

import (
	"errors"
	"testing"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/require"
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

func (w *world) replay(of deadletter.Selection, o deadletter.ReplayOptions) deadletter.Result {
	w.T.Helper()
	o.By = "tester"
	res, err := w.letters().Replay(w.T.Context(), of, o)
	if err != nil {
		w.T.Fatalf("Replay: %v (%+v)", err, res)
	}
	return res
}

// put publishes the letter of a message to the dead-letter queue; its row is the caller's business.
func (w *world) put(d rabbit.Delivery, id wire.Identified, o wire.CopyOptions) {
	w.T.Helper()
	o.Identity = id
	if o.Reason == "" {
		o.Reason = dedup.ReasonExhausted
	}
	if o.Error == "" {
		o.Error = "shelf is locked"
	}
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
func (w *world) dead(reason dedup.Reason, keys ...string) {
	w.T.Helper()
	w.Dead(reason, "no", keys...)
}

// deadMany makes n letters with their rows, named as names("k", n) does.
func (w *world) deadMany(reason dedup.Reason, n int) {
	w.T.Helper()
	w.dead(reason, names("k", n)...)
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
