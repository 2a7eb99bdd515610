package operator_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

const (
	group = letters.Group
	tag   = letters.Tag
	most  = 5 // replays
)

var (
	anna = operator.Actor{Name: "anna"}
	bert = operator.Actor{Name: "bert"}
	all  = deadletter.Filter{All: true}

	names = letters.Names
)

// world is a fresh log and a fresh set of queues.
type world struct {
	*letters.World

	desk *operator.Operator // that of the test itself, which works on nothing
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{World: letters.New(t)}
	w.desk = w.newDesk()
	return w
}

// lookup is where the world's messages are looked up.
func (w *world) lookup() operator.Lookup {
	return operator.Lookup{DB: w.DB, Records: w.Records, Group: group, OrderOf: orderOf}
}

// newDesk makes a desk, as one daemon of a fleet has it.
func (w *world) newDesk(change ...func(*operator.Options)) *operator.Operator {
	w.T.Helper()
	return w.deskAt(w.DSN, w.Broker.URL, change...)
}

// deskAt makes one that reaches its servers so.
func (w *world) deskAt(dsn, amqpURL string, change ...func(*operator.Options)) *operator.Operator {
	w.T.Helper()
	log := slog.New(slog.NewTextHandler(w.T.Output(), nil))
	options := operator.Options{Lookup: w.lookup(), Queue: w.Queue, Logger: log}
	options.DB, _ = w.Open(dsn, letters.Quick)
	options.Records = w.Log(options.DB)
	o := letters.Options(options.Records, amqpURL, w.Queue)
	o.MaxReplays = most
	options.Letters = require.Get(deadletter.New(o))(w.T)
	for _, f := range change {
		f(&options)
	}
	return require.Get(operator.New(options))(w.T)
}

// mortal is a desk, and what kills it: its connections end and it never gets others, which is what servers see of a
// process that is killed.
func (w *world) mortal() (d *operator.Operator, kill func()) {
	w.T.Helper()
	wires := []*stack.TCPProxy{stack.Proxy(w.T, stack.Addr(w.T, w.DSN)), stack.Proxy(w.T, stack.Addr(w.T, w.Broker.URL))}
	return w.deskAt(wires[0].Through(w.DSN), wires[1].Through(w.Broker.URL)), func() {
		for _, wire := range wires {
			wire.Refuse(true)
			wire.Cut()
		}
	}
}

// ask has somebody ask the fleet for a task.
func (w *world) ask(who operator.Actor, r operator.TaskRequest) operator.Act {
	w.T.Helper()
	return require.Get(w.desk.Ask(w.T.Context(), who, r))(w.T)
}

// acts are the acts on record that a filter matches.
func (w *world) acts(f operator.ActFilter) []operator.Act {
	w.T.Helper()
	return require.First(w.desk.Acts(w.T.Context(), f))(w.T)
}

// wantReplayed wants a run to be done with so many letters, each of them published, and none left.
func (w *world) wantReplayed(a operator.Act, n int) {
	w.T.Helper()
	if r := a.Result; a.State != operator.Done || r.Replayed != n || r.Applied+r.Unsettled != n || r.LeftCount != 0 {
		w.T.Errorf("%s, want %d replayed: %+v, %s", a.State, n, r, a.Error)
	}
}

// wantEnded wants an act to have ended so, with this outcome.
func (w *world) wantEnded(a operator.Act, state operator.State, outcome string) {
	w.T.Helper()
	if a.State != state || a.Outcome() != outcome {
		w.T.Errorf("%s: %s %s, want %s: %s", a.State, a.Outcome(), a.Error, state, outcome)
	}
}

// daemon works on runs until stop, or the end of the test.
func (w *world) daemon(change ...func(*operator.Options)) (stop func()) {
	w.T.Helper()
	return w.works(w.newDesk(change...))
}

// works makes a desk work until stop, or the end of the test.
func (w *world) works(d *operator.Operator) (stop func()) {
	w.T.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.T.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { d.Work(ctx) })
	stop = func() { cancel(); wg.Wait() }
	w.T.Cleanup(stop)
	return stop
}

// consumes runs an engine whose handler returns this.
func (w *world) consumes(err error, change ...func(*consumer.Config)) {
	w.T.Helper()
	w.Consume(consumer.Each(func(context.Context, *gorm.DB, consumer.Message) error { return err }), change...)
}

// dead makes letters with their rows, a minute ago.
func (w *world) dead(cause string, keys ...string) *world {
	w.T.Helper()
	w.Dead(dedup.ReasonExhausted, cause, keys...)
	w.MoveBack(time.Minute)
	return w
}

// purged makes the rows of letters that somebody has purged, a minute ago.
func (w *world) purged(keys ...string) *world {
	w.T.Helper()
	w.Rows(dedup.ReasonExhausted, "no", keys...)
	w.MoveBack(time.Minute)
	return w
}

// preview is what a person sees before the click.
func (w *world) preview(kind operator.Kind, f deadletter.Filter) operator.Preview {
	w.T.Helper()
	return require.Get(w.desk.Preview(w.T.Context(), operator.PreviewRequest{Kind: kind, Filter: f}))(w.T)
}

// start previews and starts.
func (w *world) start(r operator.Request) operator.Act {
	w.T.Helper()
	if r.Kind == "" {
		r.Kind = operator.KindReplay
	}
	r.CutOff = w.preview(r.Kind, r.Filter).At
	return require.Get(w.desk.Start(w.T.Context(), anna, r))(w.T)
}

func (w *world) act(id string) operator.Act {
	w.T.Helper()
	return require.Get(w.desk.Act(w.T.Context(), id))(w.T)
}

// until waits until an act is so.
func (w *world) until(id string, so func(operator.Act) bool) (a operator.Act) {
	w.T.Helper()
	w.Eventually("the act is as it shall be", func() (string, bool) {
		a = w.act(id)
		return fmt.Sprintf("%+v, %+v", a, a.Progress), so(a)
	})
	return a
}

// ends waits for the end of a run.
func (w *world) ends(id string) operator.Act {
	w.T.Helper()
	return w.until(id, func(a operator.Act) bool { return a.State != operator.Running })
}

// swept waits until the queue was swept after it.
func (w *world) swept(id string) operator.Act {
	w.T.Helper()
	return w.until(id, func(a operator.Act) bool { return a.State != operator.Running && !a.Sweeping })
}

// wantApplied waits until so many rows say success.
func (w *world) wantApplied(n int) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("%d rows in success", n), func() (string, bool) {
		have := w.status(dedup.Success)
		return fmt.Sprint(have), have == n
	})
}

func (w *world) status(s dedup.Status) int {
	w.T.Helper()
	return w.Number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = ?", int(s))
}

func TestMain(m *testing.M) { stack.Main(m) }
