package command

import (
	"bytes"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestProgressIsABarOnATerminalAndALineNowAndThenElsewhere(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	p := &progress{to: &out, name: "x", last: now, now: func() time.Time { return now }}
	for seen := range 12 { // a second each
		p.Show(deadletter.Progress{Seen: seen, Found: 100, Done: seen, Waiting: 3})
		now = now.Add(time.Second)
	}
	p.End()
	want := "x: 5 of 100 letters, 5 done, 3 wait for the daemon\nx: 10 of 100 letters, 10 done, 3 wait for the daemon\n"
	assert.Is(t, out.String(), want, "out.String()")

	out.Reset()
	p.bar, p.last = true, now
	p.Show(deadletter.Progress{Seen: 50, Found: 100, Done: 50, Waiting: 10, Failed: 2})
	p.Show(deadletter.Progress{Seen: 51, Found: 100, Done: 51}) // too soon
	now = now.Add(time.Second)
	p.Show(deadletter.Progress{Seen: 100, Found: 100, Done: 100})
	p.End()
	want = "\r[###############...............] 50 of 100 letters, 50 done, 10 wait for the daemon, 2 failed again" +
		"\r[##############################] 100 of 100 letters, 100 done                                      \n"
	assert.Is(t, out.String(), want, "out.String()")
	out.Reset()
	p.Show(deadletter.Progress{Seen: 7, Done: 7})
	assert.Is(t, out.String(), "\r7 letters, 7 done", "of a file")
}
