package pages

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
)

const (
	// pauseKeep is how long what was read of the pause is good for every page.
	pauseKeep = time.Second
	// pauseTime bounds that reading, which every page waits for: one row by its primary key. A page that cannot have it in
	// time shows what was read before.
	pauseTime = 150 * time.Millisecond
)

// banner is what every page knows of the pause of the fleet.
type banner struct {
	mu    sync.Mutex
	asked time.Time   // guarded by mu, as all below
	last  dedup.Pause // what was read
	at    time.Time   // when that was read
}

// paused is the pause that stands, nil when none does as far as is known.
func (p *Pages) paused(ctx context.Context) *dedup.Pause {
	b := &p.banner
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.asked) > pauseKeep {
		ctx, cancel := context.WithTimeout(ctx, pauseTime)
		defer cancel()
		if now, err := p.desk.Paused(ctx); err == nil { // else the page says what is known
			b.last, b.at = now, time.Now()
		}
		b.asked = time.Now()
	}
	now := b.last
	if now.Left -= time.Since(b.at); now.ID == "" || now.Left <= 0 {
		return nil
	}
	return &now
}

// forget has the next page read it anew.
func (b *banner) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = time.Time{}
}

// lengths are those of a pause that a person may choose.
var lengths = []time.Duration{
	5 * time.Minute, 15 * time.Minute, 30 * time.Minute, operator.DefaultPause, 2 * time.Hour, 4 * time.Hour,
	8 * time.Hour, operator.LongestPause,
}

// pausePage shows whether the fleet is paused, and the forms that change it.
func (p *Pages) pausePage(ctx context.Context, r *http.Request, d *drawn) error {
	_, err := p.desk.Paused(ctx)
	p.banner.forget()
	d.Paused = p.paused(ctx)
	pause, err2 := p.token(ctx, r, d)
	resume, err3 := p.token(ctx, r, d)
	d.Title, d.Events = "Pause", p.liveAt(r)
	d.Data = shown{
		"Standing": d.Paused, "Default": operator.DefaultPause, "Lengths": lengths, "PauseToken": pause,
		"ResumeToken": resume,
	}
	return cmp.Or(err, err2, err3)
}
