package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

var goodEnviron = []string{
	"ROLLBACKD_AMQP_URL=amqp://u:hunter2@h/", "ROLLBACKD_MYSQL_DSN=u:hunter2@tcp(h:1)/d", "ROLLBACKD_REDIS_URL=off",
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
		if code != exitFailed || stderr.String() != "consumer: write the output: no space left on device\n" {
			t.Errorf("%v: exit %d, stderr %q; want 1 and the reason, once", args, code, stderr.String())
		}
	}
}

func TestUsageTextTakesTheProgramsOwnName(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"/opt/rollbackd", "version", "--help"}, nil, strings.NewReader(""), &stdout,
		&stderr); code != exitDone {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	if got := stdout.String(); !strings.Contains(got, "rollbackd version [flags]") || strings.Contains(got, "consumer") {
		t.Errorf("usage text is %q, want the name rollbackd in it", got)
	}
	run(t.Context(), []string{"/opt/rollbackd", "nope"}, nil, strings.NewReader(""), &stdout, &stderr)
	if got := stderr.String(); !strings.HasPrefix(got, "rollbackd: ") {
		t.Errorf("error is %q, want it to begin with the program's name", got)
	}
	assert.Is(t, run(t.Context(), nil, nil, strings.NewReader(""), &stdout, &stderr), exitUsage,
		"no arguments at all: exit")
}

func TestExitCodeFollowsTheError(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		code   int
		stderr string
	}{
		"none":    {nil, exitDone, ""},
		"failure": {errors.New("RabbitMQ is away"), exitFailed, "consumer: RabbitMQ is away\n"},
		"usage": {command.Usagef("--since must come before --until"), exitUsage, "consumer: --since must come before " +
			"--until\n"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stderr := execute(t, t.Context(), func(context.Context, *command.Call) error { return tc.err })
			if code != tc.code || stderr != tc.stderr {
				t.Errorf("exit %d, stderr %q; want %d, %q", code, stderr, tc.code, tc.stderr)
			}
		})
	}
}

func TestInterruptedCommandFailsAndSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	code, stderr := execute(t, ctx, func(ctx context.Context, _ *command.Call) error {
		cancel()
		return ctx.Err()
	})
	if code != exitFailed || stderr != "consumer: interrupted before it was done\n" {
		t.Errorf("exit %d, stderr %q; want 1 and that it was interrupted", code, stderr)
	}
}

// execute runs one command that does this below a root of its own.
func execute(t *testing.T, ctx context.Context, do command.Work) (code int, stderr string) {
	t.Helper()
	var errOut bytes.Buffer
	a := &command.App{Program: "consumer", Stderr: &errOut, Stdout: io.Discard, Now: time.Now}
	root := newRoot(a, command.Command{Use: "probe", Needs: command.NeedsNothing,
		Flags: func(*command.Flags) command.Work { return do }})
	return perform(ctx, a, root, []string{"probe"}), errOut.String()
}

func TestWarningsOfTheConfigurationGoToStderr(t *testing.T) {
	_, stderr, code := runCLI(t, append(goodEnviron, "ROLLBACKD_LANE=3"), "", "config")
	if want := "consumer: warning: ROLLBACKD_LANE is no setting and has no effect; the nearest one is " +
		"ROLLBACKD_LANES\n"; code != exitDone || stderr != want {
		t.Errorf("exit %d, stderr %q; want 0, %q", code, stderr, want)
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
			if code != c.code || !strings.Contains(last, c.says) {
				t.Errorf("%s, %s: exit %d, last line %s; want %d and %q", name, format, code, last, c.code, c.says)
			}
			for _, line := range lines {
				if json.Valid([]byte(line)) == (format == "text") {
					t.Errorf("%s, %s: it says %s", name, format, line)
				}
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
		if code != exitDone || !strings.Contains("\n"+stdout, "\n"+tc.want+"\n") || !strings.HasSuffix(stdout, ":4\n") {
			t.Errorf("%s: exit %d, %q; want %s and no files", tc.args, code, stdout, tc.want)
		}
	}
	if stdout, _, code := runCLI(t, nil, "", "completion", "bash"); code != exitDone || len(stdout) < 1000 {
		t.Errorf("completion bash: exit %d, %q", code, stdout)
	}
}
