package run

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// viewer looks at a daemon's pages as people do: the overview stays open and is kept live, and every viewEvery another
// page is opened, each in turn.
type viewer struct {
	addr   string
	client *http.Client
	mu     sync.Mutex
	took   map[string]float64 // the longest time of each page, in milliseconds; guarded by mu
}

// viewEvery is about as fast as three people click.
const viewEvery = 600 * time.Millisecond

// viewed are the pages by what they show. The letter is one of those that [ground.Field.FillLog] files.
func viewed() map[string]string {
	l := ground.LetterOf(4242)
	search := func(path string, pairs ...string) string {
		q := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			q.Set(pairs[i], pairs[i+1])
		}
		return path + "?" + q.Encode()
	}
	fingerprint := deadletter.Fingerprint(l.Error)
	return map[string]string{
		"overview":          "/",
		"letters":           "/letters",
		"letters by key":    search("/letters", "key", l.Key),
		"letters by error":  search("/letters", "error", l.Error),
		"group":             "/letters/groups/" + view.GroupID(l.Reason, fingerprint),
		"preview of one":    search("/letters/act", "act", "replay", "key", l.Key),
		"preview of all":    search("/letters/act", "act", "replay", "all", "1"),
		"preview of a kind": search("/letters/act", "act", "replay", "reason", string(l.Reason), "fingerprint", fingerprint),
		"acts":              "/acts",
		"log":               "/log",
		"log by key":        search("/log", "key", l.Key),
		"log by status":     search("/log", "status", "dead"),
		"message":           search("/message", "tag", ground.RoutingKey, "key", l.Key),
		"order":             search("/order", "sn", l.Order),
	}
}

// look opens pages until ctx ends. What a page answers but 200 is an error.
func (v *viewer) look(ctx context.Context) error {
	open, hangUp := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer hangUp()
	wg.Go(func() { v.live(open) })
	for {
		for name, path := range viewed() {
			began := time.Now()
			status, err := v.get(ctx, path)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return fmt.Errorf("open the page of %s: %w", name, err)
			case status != http.StatusOK:
				return fmt.Errorf("the page of %s, %s, answers %d", name, path, status)
			}
			took := float64(time.Since(began).Microseconds()) / 1000
			v.mu.Lock()
			v.took[name] = max(v.took[name], took)
			v.mu.Unlock()
			if wait.For(ctx, viewEvery) != nil {
				return nil
			}
		}
	}
}

func (v *viewer) get(ctx context.Context, path string) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+v.addr+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := v.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// live reads the overview's events until ctx ends.
func (v *viewer) live(ctx context.Context) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+v.addr+"/?live=1", http.NoBody)
	if err != nil {
		return
	}
	response, err := v.client.Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
}

// viewing lets somebody look at the first daemon's pages from now until stop, which says how long each took at most.
func viewing(ctx context.Context, all []*program.Process) (stop func() (map[string]float64, error), err error) {
	addr, err := all[0].Addr(ctx)
	if err != nil {
		return nil, err
	}
	v := &viewer{addr: addr, client: &http.Client{Transport: &http.Transport{}}, took: map[string]float64{}}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- v.look(ctx) }()
	return func() (map[string]float64, error) {
		cancel()
		err := <-ended
		v.client.CloseIdleConnections()
		return v.took, err
	}, nil
}
