// Package fold keeps a log readable while it is flooded: of each kind of line a few stand as they are, and one line
// counts the rest and shows one of them.
//
// What belongs here: which lines are alike, and when they are told. What does not: what a line says, and where it is
// written.
package fold

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// Most lines of one kind stand as they are, in Window from the first of them.
	Most = 10
	// Window is how long lines of one kind are counted together.
	Window = 10 * time.Second

	// mostKinds are told apart at once. What comes beyond goes by its level and text alone.
	mostKinds = 500
)

// Names of the attributes of a line that stands for others.
const (
	CountKey = "more_like_this" // how many others
	OverKey  = "over"           // since the first of their kind
)

// Handler is a slog.Handler that hands records on to another one, those of a flood folded. Lines that are few are never
// folded, and never late.
type Handler struct {
	next slog.Handler
	*state
}

// state is what a handler shares with those that were made of it by With.
type state struct {
	fingerprint func(string) string

	mu    sync.Mutex
	kinds map[kind]*flood // guarded by mu
}

// kind is what lines have in common that are folded together.
type kind struct {
	level slog.Level
	text  string
}

// flood is what came of a kind in a window.
type flood struct {
	began   time.Time
	passed  int // stand as they are
	folded  int
	example slog.Record  // of those folded
	to      slog.Handler // the example's
	end     *time.Timer
}

// New folds what goes to next. Lines are of one kind when level and text are the same, and so are why they were written
// (attributes err, reason and why) but for what fingerprint leaves out: what differs from case to case.
func New(next slog.Handler, fingerprint func(string) string) *Handler {
	return &Handler{next, &state{fingerprint: fingerprint, kinds: map[kind]*flood{}}}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{h.next.WithAttrs(attrs), h.state}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{h.next.WithGroup(name), h.state}
}

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if h.folds(r) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// folds reports whether a record is one too many of its kind, and counts it.
func (h *Handler) folds(r slog.Record) bool {
	k := kind{r.Level, r.Message}
	r.Attrs(func(a slog.Attr) bool {
		if slices.Contains([]string{"err", "reason", "why"}, a.Key) {
			k.text += " " + h.fingerprint(a.Value.Resolve().String())
		}
		return true
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.kinds[k]
	if f == nil && len(h.kinds) >= mostKinds {
		k.text = r.Message
		f = h.kinds[k]
	}
	if f == nil {
		f = &flood{began: time.Now()}
		f.end = time.AfterFunc(Window, func() { h.told(k, f) })
		h.kinds[k] = f
	}
	if f.passed < Most {
		f.passed++
		return false
	}
	if f.folded++; f.folded == 1 {
		f.example, f.to = r.Clone(), h.next
	}
	return true
}

// told ends a window. The next line of its kind begins another one.
func (s *state) told(k kind, f *flood) {
	s.mu.Lock()
	if s.kinds[k] == f {
		delete(s.kinds, k)
	}
	n := f.folded
	f.folded = 0 // Flush may come at the same time
	s.mu.Unlock()
	if n == 0 {
		return
	}
	line := slog.NewRecord(time.Now(), k.level, f.example.Message, f.example.PC)
	if n > 1 {
		line.AddAttrs(slog.Int(CountKey, n-1), slog.Duration(OverKey, time.Since(f.began).Round(time.Millisecond)))
	}
	f.example.Attrs(func(a slog.Attr) bool { line.AddAttrs(a); return true })
	_ = f.to.Handle(context.Background(), line) // as slog itself does with what a handler returns
}

// Flush tells at once what was folded so far, for the end of a process.
func (h *Handler) Flush() {
	h.mu.Lock()
	open := make(map[kind]*flood, len(h.kinds))
	for k, f := range h.kinds {
		f.end.Stop()
		open[k] = f
	}
	h.mu.Unlock()
	for k, f := range open {
		h.told(k, f)
	}
}
