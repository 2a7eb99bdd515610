package operator_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
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

// place is where a desk stands: servers and names.
type place struct{ dsn, amqpURL, queue string }

// newDesk makes a desk, as one daemon of a fleet has it, and its pool.
func (p place) newDesk(
	ctx context.Context, log *slog.Logger, change ...func(*operator.Options),
) (*operator.Operator, *sql.DB, error) {
	db, _, err := dedup.Open(ctx, p.dsn, letters.Quick)
	if err != nil {
		return nil, nil, err
	}
	pool, poolErr := db.DB()
	records, err := dedup.NewLog(db, letters.LogOptions())
	o := letters.Options(records, p.amqpURL, p.queue)
	o.MaxReplays = most
	dead, lettersErr := deadletter.New(o)
	if err := errors.Join(poolErr, err, lettersErr); err != nil {
		return nil, nil, err
	}
	options := operator.Options{
		Lookup:  operator.Lookup{DB: db, Records: records, Group: group, OrderOf: orderOf},
		Letters: dead, Queue: p.queue, Logger: log,
	}
	for _, f := range change {
		f(&options)
	}
	d, err := operator.New(options)
	return d, pool, err
}

// world is a fresh log and a fresh set of queues.
type world struct {
	*letters.World
	place

	desk *operator.Operator // that of the test itself, which works on nothing
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{World: letters.New(t)}
	w.place = place{dsn: w.DSN, amqpURL: w.Broker.URL, queue: w.Queue}
	w.desk = w.newDesk()
	return w
}

func (w *world) newDesk(change ...func(*operator.Options)) *operator.Operator {
	w.T.Helper()
	d, pool, err := w.place.newDesk(w.T.Context(), slog.New(slog.NewTextHandler(w.T.Output(), nil)), change...)
	w.Must(err)
	w.T.Cleanup(func() { _ = pool.Close() })
	return d
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

// replayedSoFar waits until so many rows of a run are replayed.
func (w *world) replayedSoFar(id string, n int) {
	w.T.Helper()
	w.Eventually("some are replayed", func() (string, bool) {
		have := w.act(id).Progress.Done
		return fmt.Sprint(have), have >= n
	})
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
	stop = func() {
		cancel()
		wg.Wait()
	}
	w.T.Cleanup(stop)
	return stop
}

// consumes runs an engine whose handler refuses what refuse says.
func (w *world) consumes(refuse func(key string) bool) {
	w.T.Helper()
	w.Consume(consumer.Each(func(_ context.Context, _ *gorm.DB, m consumer.Message) error {
		if refuse != nil && refuse(m.Key) {
			return fmt.Errorf("shelf of %s is locked", m.Key)
		}
		return nil
	}))
}

// dead makes letters with their rows, a second ago.
func (w *world) dead(cause string, keys ...string) *world {
	w.T.Helper()
	w.Dead(dedup.ReasonExhausted, cause, keys...)
	return w
}

// oneBegins lets n begin the same at once: one does, whose id it is, and the others are told of it.
func (w *world) oneBegins(n int, begin func(i int) (operator.Act, error)) (id string) {
	w.T.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	began, named := map[string]int{}, map[string]int{}
	for i := range n {
		all.Go(func() {
			a, err := begin(i)
			mu.Lock()
			defer mu.Unlock()
			same, _ := errors.AsType[*operator.SameSetError](err)
			switch {
			case err == nil:
				began[a.ID]++
				id = a.ID
			case same != nil && errors.Is(err, operator.ErrSameSet):
				named[same.Act.ID]++
			default:
				w.T.Error(err)
			}
		})
	}
	all.Wait()
	if len(began) != 1 || began[id] != 1 || len(named) != 1 || named[id] != n-1 {
		w.T.Fatalf("begun %v, and the others are told of %v; want one", began, named)
	}
	return id
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

// ends waits for the end of a run.
func (w *world) ends(id string) (a operator.Act) {
	w.T.Helper()
	w.Eventually("the run ends", func() (string, bool) {
		a = w.act(id)
		return fmt.Sprintf("%s %+v", a.State, a.Progress), a.State != operator.Running
	})
	return a
}

// swept waits until the queue was swept after it.
func (w *world) swept(id string) (a operator.Act) {
	w.T.Helper()
	w.Eventually("the sweep ends", func() (string, bool) {
		a = w.act(id)
		return fmt.Sprintf("%+v", a), a.State != operator.Running && !a.Sweeping
	})
	return a
}

// wantLetters waits until the dead-letter queue holds so many.
func (w *world) wantLetters(n int) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("%d letters", n), func() (string, bool) {
		have := w.Broker.Depth(rabbit.DeadQueue(w.Queue))
		return fmt.Sprint(have), have == n
	})
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

// childEnv makes the test binary a daemon that works on runs, to be killed.
const childEnv = "ROLLBACKD_TEST_DESK"

func runChild(settings string) int {
	part := strings.Split(settings, "\n")
	d, _, err := place{part[0], part[1], part[2]}.newDesk(context.Background(), slog.New(slog.NewTextHandler(os.Stderr,
		nil)))
	if err != nil {
		return 1
	}
	if len(part) > 3 && doOwn(d) != nil {
		return 1
	}
	d.Work(context.Background())
	return 0
}

// child starts a daemon as a process, or with a word more what doOwn does; kill ends it as kill -9 does.
func (w *world) child(more ...string) (kill func()) {
	w.T.Helper()
	cmd := exec.CommandContext(w.T.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(append([]string{w.dsn, w.amqpURL,
		w.queue}, more...), "\n"))
	w.Must(cmd.Start())
	return func() {
		w.T.Helper()
		assert.OK(w.T, cmd.Process.Signal(syscall.SIGKILL), "it had ended by itself:")
		_ = cmd.Wait()
	}
}

// TestMain runs the tests, or, in a process that a test has started with childEnv set, a daemon that works on runs.
func TestMain(m *testing.M) {
	if settings := os.Getenv(childEnv); settings != "" {
		os.Exit(runChild(settings))
	}
	stack.Main(m)
}
