package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given a daemon on a port that was free, then the commands of a person's shell look for it there.
func TestTheCommandsOfTheHeldDemoFindItsDaemon(t *testing.T) {
	d := &demo{
		dir: t.TempDir(), binary: "rollbackd",
		env: []string{"ROLLBACKD_HTTP_ADDR=127.0.0.1:0", "ROLLBACKD_MYSQL_DSN=root:it's@tcp(127.0.0.1:1)/shop"},
	}
	commands, _ := d.leaveCommands("127.0.0.1:4711")
	text := require.Get(os.ReadFile(commands))(t)
	for _, want := range []string{
		"export ROLLBACKD_HTTP_ADDR='127.0.0.1:4711'\n",
		`export ROLLBACKD_MYSQL_DSN='root:it'\''s@tcp(127.0.0.1:1)/shop'` + "\n",
	} {
		assert.Has(t, string(text), want, "the file lacks: %s", text)
	}
}

func TestReportHasItsForm(t *testing.T) {
	var out bytes.Buffer
	d := &demo{
		out: &out, initial: oracle.Stock{1: {Amount: 20_000_000}}, published: 24_007, applied: 20_000, absorbed: 4000,
		perSecond: 112_002, dead: map[string]int{"malformed": 2, "exhausted": 3, "conflict": 2},
	}
	d.table(20_000_000)
	golden.Is(t, "testdata/report.txt", out.String())
}
