package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestTableAlignsAndNeverSendsControlCharacters(t *testing.T) {
	tab := Table{Header: []string{"KEY", "N"}}
	tab.Add("a\x1b[31m\n\tb", 7)
	tab.Add("naïve", "")
	tab.Add("\u202eevil\x00\xff\u200b\r", -1)
	var out Page
	out.Table(tab)
	want := "KEY                         N\n" +
		`a\x1b[31m\n\tb              7` + "\n" +
		"naïve                       -\n" +
		`\u202eevil\x00\xff\u200b\r  -1` + "\n"
	assert.Is(t, out.String(), want, "table")
}

func TestJSONNeverActsOnATerminalAndAnEmptyListIsOne(t *testing.T) {
	value := map[string]string{
		"k\u009bm": "\x1b[31m \x7f \u0085 \u202eevil\u2066 \u200b \ufeff naïve 世 😀 \U000e0041 \xff \n",
	}
	var out bytes.Buffer
	require.OK(t, WriteJSON(&out, value))
	want := "{\n" + `  "k\u009bm": "\u001b[31m \u007f \u0085 \u202eevil\u2066 \u200b \ufeff naïve 世 😀 \udb40\udc41 ` +
		`\ufffd \n"` + "\n}\n"
	assert.Is(t, out.String(), want, "JSON")
	var back map[string]string
	err := json.Unmarshal(out.Bytes(), &back)
	assert.That(t, err == nil && back["k\u009bm"] == strings.ToValidUTF8(value["k\u009bm"], "\ufffd"),
		"read again it is %q, %v", back, err)
	out.Reset()
	require.OK(t, WriteJSON(&out, []Build(nil)))
	assert.Is(t, out.String(), "[]\n", "an empty list")
}

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

func TestMomentsAreTimesOrDurations(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                          {},
		"24h":                       now.Add(-24 * time.Hour),
		"2026-11-21T08:00:00Z":      time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC),
		"2026-11-21T08:00:00+02:00": time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC),
		"2026-11-21 08:00:00":       time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC),
		"2026-11-21":                time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC),
		"yesterday":                 {}, // as are those below: none
		"-3h":                       {},
		"24":                        {},
		"21.11.2026":                {},
	} {
		got, err := readMoment("since", text, now)
		if none := want.IsZero() && text != ""; (err != nil) != none || err == nil && !got.Equal(want) {
			t.Errorf("readMoment(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
}
