package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/rollbackd/rollbackd/internal/wait"
)

const (
	// progressEvery is how often the daemon is asked how far it is.
	progressEvery = 50 * time.Millisecond
	// lineEvery is how often a line appears where none can be drawn again.
	lineEvery = time.Second
)

// seen is how far the daemon is.
type seen struct{ published, applied, duplicates, letters int }

// line is one line of progress.
func (s seen) line(since time.Duration) string {
	rate := 0
	if since > 0 {
		rate = int(float64(s.applied+s.duplicates+s.letters) / since.Seconds())
	}
	return fmt.Sprintf("%5.1f s   published %s   applied %s   duplicates %s   dead letters %d   %s/s",
		since.Seconds(), number(s.published), number(s.applied), number(s.duplicates), s.letters, number(rate))
}

// watch shows progress while messages are published and consumed: on a terminal one line, drawn again and again;
// elsewhere a line every second.
type watch struct {
	d        *demo
	out      io.Writer
	terminal bool
	stop     context.CancelFunc
	wg       sync.WaitGroup

	mu    sync.Mutex
	now   seen // guarded by mu
	began time.Time
}

func (d *demo) watch() *watch {
	ctx, stop := context.WithCancel(d.ctx)
	w := &watch{
		d: d, out: d.out, terminal: term.IsTerminal(int(d.out.Fd())) && os.Getenv("TERM") != "dumb", stop: stop,
		began: time.Now(),
	}
	every := lineEvery
	if w.terminal {
		every = progressEvery
	}
	w.wg.Go(func() {
		for wait.For(ctx, every) == nil {
			if _, err := w.look(); err == nil { // whoever waits for the daemon sees the error
				w.draw()
			}
		}
	})
	return w
}

// published takes in how many messages are confirmed.
func (w *watch) published(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now.published = n
}

// look asks the daemon's metrics.
func (w *watch) look() (seen, error) {
	m, err := w.d.daemon.Metrics(w.d.ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.now.applied, w.now.duplicates, w.now.letters = m.Deliveries("applied"), m.Deliveries("duplicate"),
			m.Deliveries("dead_lettered")
	}
	return w.now, err
}

// draw shows where we are.
func (w *watch) draw() {
	w.mu.Lock()
	text := w.now.line(time.Since(w.began))
	w.mu.Unlock()
	if w.terminal {
		fmt.Fprintf(w.out, "\r\x1b[K%s", text)
	} else {
		fmt.Fprintln(w.out, text)
	}
}

// end draws the last state and stops.
func (w *watch) end() {
	w.stop()
	w.wg.Wait()
	w.draw()
	if w.terminal {
		fmt.Fprintln(w.out)
	}
}
