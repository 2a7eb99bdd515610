package command

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
)

const (
	// lineEvery is the pause between two lines where nobody sees a bar: in a file, a pipe, a log.
	lineEvery = 5 * time.Second
	// drawEvery is the pause between two drawings of the bar.
	drawEvery = 100 * time.Millisecond
	barWidth  = 30
)

// progress shows on stderr how far a run has come: a bar on a terminal, elsewhere a line now and then. The standard
// output is left to the result.
type progress struct {
	to    io.Writer
	name  string // of the program
	bar   bool
	last  time.Time // something was shown, or the run began
	drawn int       // characters of the bar on the screen
	now   func() time.Time
}

func (a *App) newProgress() *progress {
	return &progress{to: a.Stderr, name: a.Program, bar: onTerminal(a.Stderr), last: a.Now(), now: a.Now}
}

// Show is called more often than anybody could read.
func (p *progress) Show(at deadletter.Progress) { p.Draw(progressText(at), at.Seen, at.Found) }

// Count shows on a terminal how many there were so far.
func (p *progress) Count(n int, what string) {
	if p.bar {
		p.Draw(fmt.Sprintf("%d %s", n, what), 0, 0)
	}
}

// Draw shows a text, and on a terminal a bar in front of it when it is known how many there are.
func (p *progress) Draw(text string, seen, found int) {
	every := lineEvery
	if p.bar {
		every = drawEvery
	}
	now := p.now()
	if now.Sub(p.last) < every && !(p.bar && p.drawn == 0) {
		return
	}
	p.last = now
	if !p.bar {
		fmt.Fprintf(p.to, "%s: %s\n", p.name, text)
		return
	}
	if found > 0 {
		full := barWidth * min(seen, found) / found
		text = "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "] " + text
	}
	fmt.Fprintf(p.to, "\r%-*s", p.drawn, text) // which covers a longer one
	p.drawn = len(text)
}

// End leaves the bar's line.
func (p *progress) End() {
	if p.drawn > 0 {
		fmt.Fprintln(p.to)
		p.drawn = 0
	}
}

func progressText(at deadletter.Progress) string {
	text := fmt.Sprintf("%d letters", at.Seen)
	if at.Found > 0 {
		text = fmt.Sprintf("%d of %d letters", at.Seen, at.Found)
	}
	text += fmt.Sprintf(", %d done", at.Done)
	if at.Waiting > 0 {
		text += fmt.Sprintf(", %d wait for the daemon", at.Waiting)
	}
	if at.Failed > 0 {
		text += fmt.Sprintf(", %d failed again", at.Failed)
	}
	return text
}
