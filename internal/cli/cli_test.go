package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/fold"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// runCLI runs the program in process, called as "consumer", and returns what a shell would see.
func runCLI(t *testing.T, environ []string, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = run(t.Context(), append([]string{"/usr/bin/consumer"}, args...), environ, strings.NewReader(stdin), &out,
		&errOut)
	return out.String(), errOut.String(), code
}

// TestGolden runs every testdata/*.txtar. A file holds a comment, then these parts: args (one a line), env (NAME=value
// lines), stdin, files/NAME (written to a directory that $WORK names in args and env), and what is expected: stdout,
// stderr, exit. Missing parts are empty. -update rewrites the expected parts; the diff is to be reviewed.
func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	require.That(t, err == nil && len(paths) > 0, "testdata has no golden files: %v", err)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive := require.Get(txtar.ParseFile(path))(t)
			work := t.TempDir()
			parts := make(map[string]string)
			for _, f := range archive.Files {
				parts[f.Name] = string(f.Data)
				if name, ok := strings.CutPrefix(f.Name, "files/"); ok {
					require.OK(t, os.WriteFile(filepath.Join(work, filepath.Base(name)), f.Data, 0o600))
				}
			}
			list := func(part string) []string {
				return strings.FieldsFunc(strings.ReplaceAll(parts[part], "$WORK", work), func(r rune) bool { return r == '\n' })
			}
			stdout, stderr, code := runCLI(t, list("env"), parts["stdin"], list("args")...)
			archive.Files = slices.DeleteFunc(archive.Files, func(f txtar.File) bool {
				return f.Name == "stdout" || f.Name == "stderr" || f.Name == "exit"
			})
			for _, part := range [][2]string{
				{"stdout", normalForm(stdout, work)}, {"stderr", normalForm(stderr, work)}, {"exit", fmt.Sprintln(code)},
			} {
				if part[1] != "" {
					assert.That(t, strings.HasSuffix(part[1], "\n"), "%s ends within a line: %q", part[0], part[1])
					archive.Files = append(archive.Files, txtar.File{Name: part[0], Data: []byte(part[1])})
				}
			}
			golden.Is(t, path, string(txtar.Format(archive)))
		})
	}
}

// spaces are the ones of an aligned table: their number follows the width of volatile values.
var spaces = regexp.MustCompile(`(GOVERSION|PLATFORM|\bGO\b) +`)

// normalForm replaces what differs from machine to machine.
func normalForm(s, work string) string {
	s = strings.NewReplacer(work, "$WORK", runtime.Version(), "GOVERSION", runtime.GOOS+"/"+runtime.GOARCH,
		"PLATFORM").Replace(s)
	return spaces.ReplaceAllString(s, "$1  ")
}

func TestMain(m *testing.M) { stack.Main(m, program.Remove) }

var goodEnviron = []string{
	"ROLLBACKD_AMQP_URL=amqp://u:hunter2@h/", "ROLLBACKD_MYSQL_DSN=u:hunter2@tcp(h:1)/d", "ROLLBACKD_REDIS_URL=off",
}

func TestUsageTextTakesTheProgramsOwnName(t *testing.T) {
	called := func(args ...string) (said string, code int) {
		var out bytes.Buffer
		code = run(t.Context(), args, nil, strings.NewReader(""), &out, &out)
		return out.String(), code
	}
	said, code := called("/opt/rollbackd", "version", "--help")
	assert.That(t, code == exitDone && strings.Contains(said, "rollbackd version [flags]") &&
		!strings.Contains(said, "consumer"), "usage text is %q, exit %d; want the name rollbackd in it", said, code)
	said, _ = called("/opt/rollbackd", "nope")
	assert.Is(t, strings.HasPrefix(said, "rollbackd: "), true, "%q begins with the program's name", said)
	_, code = called()
	assert.Is(t, code, exitUsage, "no arguments at all: exit")
}

// fullDisk refuses every write.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"version", "-o", "json"}, {"config"}, {"config", "-o", "json"},
		{"config", "-o", "markdown"}} {
		var stderr bytes.Buffer
		code := run(t.Context(), append([]string{"consumer"}, args...), goodEnviron, strings.NewReader(""), fullDisk{},
			&stderr)
		assert.That(t, code == exitFailed && stderr.String() == "consumer: write the output: no space left on device\n",
			"%v: exit %d, stderr %q; want 1 and the reason, once", args, code, stderr.String())
	}
}

func TestLogFollowsTheConfiguration(t *testing.T) {
	for _, tc := range []struct {
		format string
		level  slog.Level
		want   string
	}{
		{config.LogFormatText, slog.LevelInfo, "level=INFO msg=hello"},
		{config.LogFormatJSON, slog.LevelInfo, `"msg":"hello","after":"1.5s"}`},
		{config.LogFormatAuto, slog.LevelInfo, `"msg":"hello"`}, // a buffer is no terminal
		{config.LogFormatText, slog.LevelWarn, ""},
	} {
		var stderr bytes.Buffer
		a := &command.App{Stderr: &stderr}
		a.Logger(config.Config{LogFormat: tc.format, LogLevel: tc.level}).Info("hello", "after", 1500*time.Millisecond)
		if got := stderr.String(); !strings.Contains(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("format %s, level %s: log is %q, want %q", tc.format, tc.level, got, tc.want)
		}
	}
}

// Whatever collects a daemon's JSON log reads its last line too, and the warnings before the log has begun.
func TestTheLastErrorOfRunFollowsTheLogFormat(t *testing.T) {
	wrong := append(slices.Clone(goodEnviron), "ROLLBACKD_LANE=3", "ROLLBACKD_HTTP_ADDR=127.0.0.1:notaport")
	taken := require.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	busy := append(slices.Clone(goodEnviron), "ROLLBACKD_LANE=3", "ROLLBACKD_HTTP_ADDR="+taken.Addr().String())
	for name, c := range map[string]struct {
		environ []string
		code    int
		says    string
	}{"a wrong setting": {wrong, exitUsage, "ROLLBACKD_HTTP_ADDR"},
		"an address that is taken": {busy, exitFailed, "address already in use"}} {
		for _, format := range []string{"json", "auto", "text"} {
			_, stderr, code := runCLI(t, append(c.environ, "ROLLBACKD_LOG_FORMAT="+format), "", "run")
			lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
			last := lines[len(lines)-1]
			assert.That(t, code == c.code && strings.Contains(last, c.says),
				"%s, %s: exit %d, last line %s; want %d and %q", name, format, code, last, c.code, c.says)
			if format == "text" {
				assert.Is(t, lines[0], "consumer: warning: ROLLBACKD_LANE is no setting and has no effect; the nearest one is "+
					"ROLLBACKD_LANES", "first")
			}
			for _, line := range lines {
				assert.That(t, json.Valid([]byte(line)) != (format == "text"), "%s, %s: it says %s", name, format, line)
			}
		}
	}
}

// Given a shell that asks what may come next, when a flag's values are a closed list, then it is offered, and no file.
func TestShellsAreOfferedTheValuesOfFlags(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"dlq replay --reason", "exhausted"}, {"dlq list --by", "reason"}, {"log list --status", "discarded"},
		{"dlq list -o", "json"}, {"config -o", "markdown"},
	} {
		args := append([]string{"__complete"}, strings.Fields(tc.args)...)
		stdout, _, code := runCLI(t, nil, "", append(args, "")...)
		assert.That(t, code == exitDone && strings.Contains("\n"+stdout, "\n"+tc.want+"\n") &&
			strings.HasSuffix(stdout, ":4\n"), "%s: exit %d, %q; want %s and no files", tc.args, code, stdout, tc.want)
	}
	stdout, _, code := runCLI(t, nil, "", "completion", "bash")
	assert.That(t, code == exitDone && len(stdout) >= 1000, "completion bash: exit %d, %q", code, stdout)
}

// Given 400 messages without a body that anybody can read and three with a key that another body has, then the log has
// a few lines of the former, of which one counts the rest, and one for each of the three.
func TestAFloodOfLettersIsReadableInTheLog(t *testing.T) {
	s := migrated(t)
	var in strings.Builder
	const many = 400
	for i := range many {
		fmt.Fprintf(&in, "{\"order_sn\":\"F-%d\",\"items\":[]}\n", i)
	}
	for i := range 3 {
		fmt.Fprintf(&in, "{\"order_sn\":\"F-%d\",\"items\":[1]}\n", i)
	}
	require.Is(t, s.run(in.String(), "publish", "--key-field", "order_sn"), exitDone, "publish: %s", s.script.String())
	s.works(many+3, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	lines := map[string]int{}
	for line := range strings.Lines(s.log) {
		var entry struct{ Msg, Reason string }
		require.OK(t, json.Unmarshal([]byte(line), &entry))
		if entry.Msg == "dead-lettered" {
			lines[entry.Reason]++
		}
	}
	assert.That(t, lines["malformed"] <= 30 && lines["conflict"] == 3 && strings.Contains(s.log, fold.CountKey),
		"%d lines for %d malformed letters, %d for the conflicts, want 11 of which one counts, and 3:\n%.2000s",
		lines["malformed"], many, lines["conflict"], s.log)
}
