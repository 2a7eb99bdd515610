package pages

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

const (
	// refusedEvery is how often the same refusal of the same person is written down: whoever sends it again and again
	// must not fill the table of acts.
	refusedEvery = time.Minute
	// mostRefused bounds the refusals that are remembered for that.
	mostRefused = 1000
	// refusedTime bounds the writing; longestAsked is how many characters of an address are kept.
	refusedTime  = 2 * time.Second
	longestAsked = 200
)

// refusal is what stands in the act of something that a person may not do.
type refusal struct {
	Method string `json:"method"`
	Path   string `json:"path"`
}

// Refusals writes down what persons asked for and may not do, for [server.GuardOptions].
type Refusals struct {
	desk *operator.Operator
	log  *slog.Logger

	mu    sync.Mutex
	known map[string]time.Time // when each was written down; guarded by mu
}

// NewRefusals makes one.
func NewRefusals(d *operator.Operator, log *slog.Logger) *Refusals {
	return &Refusals{desk: d, log: log, known: map[string]time.Time{}}
}

// Note writes a refusal down, unless the same one was within the minute before. It goes on when the request has ended.
func (f *Refusals) Note(ctx context.Context, who server.Person, r *http.Request) {
	asked := refusal{r.Method, screen.Shorten(r.URL.Path, longestAsked)}
	if !f.news(who.Name+"\x00"+asked.Method+asked.Path, time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refusedTime)
	defer cancel()
	if _, err := f.desk.Note(ctx, operator.Actor{Name: who.Name}, operator.KindRefused, "", asked,
		"may look and not act, so it was refused"); err != nil {
		f.log.WarnContext(ctx, "a refusal could not be written down", "by", who.Name, "method", asked.Method, "path",
			asked.Path, "err", err)
	}
}

// news reports whether a refusal is to be written down.
func (f *Refusals) news(what string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.known, func(_ string, last time.Time) bool { return now.Sub(last) >= refusedEvery })
	if _, known := f.known[what]; known || len(f.known) >= mostRefused {
		return false
	}
	f.known[what] = now
	return true
}
