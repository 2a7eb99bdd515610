package main

import (
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

const (
	// progressEvery is how often the daemon is asked how far it is.
	progressEvery = 50 * time.Millisecond
	// lineEvery is how often a line appears.
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

// progress shows a line now and then while messages are published and consumed.
type progress struct {
	d            *demo
	began, shown time.Time
	now          seen
}

// look asks the daemon's metrics, and says how many messages are applied.
func (p *progress) look() int {
	m := must.Get(p.d.daemon.Metrics(p.d.ctx))
	p.now.applied, p.now.duplicates = m.Deliveries("applied"), m.Deliveries("duplicate")
	p.now.letters = m.Deliveries("dead_lettered")
	if time.Since(p.shown) >= lineEvery {
		p.show()
	}
	return p.now.applied
}

func (p *progress) published(n int) {
	if p.now.published = n; time.Since(p.shown) >= lineEvery {
		p.look()
	}
}

func (p *progress) show() {
	p.shown = time.Now()
	p.d.say("%s", p.now.line(time.Since(p.began)))
}
