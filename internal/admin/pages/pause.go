package pages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
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
		if now, err := p.o.Desk.Paused(ctx); err == nil { // else the page says what is known
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

func (b *banner) know(now dedup.Pause) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked, b.last, b.at = time.Now(), now, time.Now()
}

// lengths are those of a pause that a person may choose.
var lengths = []time.Duration{
	5 * time.Minute, 15 * time.Minute, 30 * time.Minute, operator.DefaultPause, 2 * time.Hour, 4 * time.Hour,
	8 * time.Hour, operator.LongestPause,
}

// pausePage shows whether the fleet is paused, and the forms that change it.
func (p *Pages) pausePage(ctx context.Context, r *http.Request, d *drawn) error {
	now, err := p.o.Desk.Paused(ctx)
	if err != nil {
		return err
	}
	p.banner.know(now)
	d.Paused = p.paused(ctx)
	pause, err := p.token(ctx, r, d)
	resume, err2 := p.token(ctx, r, d)
	d.Title, d.Events = "Pause", p.liveAt(r)
	d.Data = shown{
		"Standing": d.Paused, "Default": operator.DefaultPause, "Lengths": lengths, "PauseToken": pause,
		"ResumeToken": resume,
	}
	return cmp.Or(err, err2)
}

// pause pauses the fleet, in place of the pause that the form has shown if it has shown one. All that can be wrong with
// the form is found before its token is taken.
func (p *Pages) pause(ctx context.Context, r *http.Request) (string, error) {
	ask := operator.PauseRequest{
		Why: strings.TrimSpace(r.PostForm.Get("why")), Instead: r.PostForm.Get("instead"),
	}
	if ask.Why == "" {
		return "", problem{http.StatusUnprocessableEntity, "Say why consuming is to be paused, for whoever finds it so: " +
			"go back and write a reason. Nothing was done."}
	}
	var err error
	if ask.For, err = time.ParseDuration(r.PostForm.Get("for")); err != nil || ask.For < operator.LeastPause ||
		ask.For > operator.LongestPause {
		return "", problem{http.StatusUnprocessableEntity, fmt.Sprintf("%q is no time for which consuming can be paused: go "+
			"back and choose one of up to %s, like 30m. Nothing was done.", r.PostForm.Get("for"),
			length(operator.LongestPause))}
	}
	return p.once(ctx, r, func(id string) (operator.Act, error) {
		ask.ID = id
		now, err := p.o.Desk.Pause(ctx, view.Actor(ctx), ask)
		return p.changed(id, now, err)
	})
}

// resume ends the pause that the form has shown.
func (p *Pages) resume(ctx context.Context, r *http.Request) (string, error) {
	ask := operator.ResumeRequest{Why: strings.TrimSpace(r.PostForm.Get("why")), Pause: r.PostForm.Get("pause")}
	if ask.Pause == "" {
		return "", problem{http.StatusUnprocessableEntity, "The form does not say which pause is to end: load the page " +
			"again."}
	}
	return p.once(ctx, r, func(id string) (operator.Act, error) {
		ask.ID = id
		_, err := p.o.Desk.Resume(ctx, view.Actor(ctx), ask)
		return p.changed(id, dedup.Pause{}, err)
	})
}

// changed tells the pages what stands now, or says in words of the page what became of a pause meanwhile.
func (p *Pages) changed(id string, now dedup.Pause, err error) (operator.Act, error) {
	if standing, ok := errors.AsType[*operator.PausedError](err); ok {
		err = problem{http.StatusConflict, fmt.Sprintf("Somebody was faster: consuming is %v now. Nothing was done; load "+
			"the page again.", standing.Pause)}
	} else if errors.Is(err, dedup.ErrNotPaused) {
		err = problem{http.StatusConflict, "Consuming is not paused any more. Nothing was done."}
	}
	if err == nil {
		p.banner.know(now)
	}
	return operator.Act{ID: id}, err
}
