package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/config"
)

func TestProgressIsALineNowAndThenWhereNobodySeesABar(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	p := &progress{to: &out, name: "x", last: now, now: func() time.Time { return now }}
	for seen := range 12 { // a second each
		p.show(deadletter.Progress{Seen: seen, Found: 100, Done: seen, Waiting: 3})
		now = now.Add(time.Second)
	}
	p.end()
	want := "x: 5 of 100 letters, 5 done, 3 wait for the daemon\nx: 10 of 100 letters, 10 done, 3 wait for the daemon\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestPublishShowsHowFarItIs(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	cfg, _, err := config.Load(s.environ)
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	a := &app{name: "x", stdout: &out, stderr: &errOut}
	c := &call{app: a, cfg: cfg, progress: a.newProgress(time.Now())}
	p, err := c.newPublishing("", "")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c.progress.now = func() time.Time { now = now.Add(2 * time.Second); return now } // a window takes two seconds
	if err := p.run(t.Context(), strings.NewReader(strings.Repeat("{}\n", 3000))); err != nil {
		t.Fatal(err)
	}
	if want := "x: published 1500 messages\nx: published 3000 messages\n"; errOut.String() != want {
		t.Errorf("%q, want %q", errOut.String(), want)
	}
}

func TestProgressIsABarOnATerminal(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	p := &progress{to: &out, name: "x", bar: true, last: now, now: func() time.Time { return now }}
	p.show(deadletter.Progress{Seen: 50, Found: 100, Done: 50, Waiting: 10, Failed: 2})
	p.show(deadletter.Progress{Seen: 51, Found: 100, Done: 51}) // too soon
	now = now.Add(time.Second)
	p.show(deadletter.Progress{Seen: 100, Found: 100, Done: 100})
	p.end()
	want := "\r[###############...............] 50 of 100 letters, 50 done, 10 wait for the daemon, 2 failed again" +
		"\r[##############################] 100 of 100 letters, 100 done                                      \n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	p.show(deadletter.Progress{Seen: 7, Done: 7})
	if want := "\r7 letters, 7 done"; out.String() != want {
		t.Errorf("of a file: %q, want %q", out.String(), want)
	}
}
