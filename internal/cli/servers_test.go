package cli

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver of db

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/strictjson"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// shell runs commands against real servers of the test's own and keeps a transcript, which is compared with
// testdata/servers/NAME.golden; -update rewrites that. What differs from run to run is replaced in it.
type shell struct {
	t       *testing.T
	environ []string
	broker  *stack.Broker
	dsn     string
	queue   string
	replace []string // old, new, …
	vars    []string // of a script: $NAME, value, …
	script  bytes.Buffer
	pool    *sql.DB // see db
	file    string  // $FILE of a script
	log     string  // of the last daemon, once it has stopped
}

// newShell has servers and settings. Its test runs beside others.
func newShell(t *testing.T, more ...string) *shell {
	t.Helper()
	t.Parallel()
	return shellOf(t, more...)
}

// shellOf is newShell for a test that does not run beside others.
func shellOf(t *testing.T, more ...string) *shell {
	t.Helper()
	s := &shell{t: t, broker: stack.AMQP(t), dsn: stack.MySQL(t)}
	s.queue = s.broker.Name("stock.rollback")
	redis := stack.Redis(t)
	s.environ = append([]string{"ROLLBACKD_AMQP_URL=" + s.broker.URL, "ROLLBACKD_MYSQL_DSN=" + s.dsn,
		"ROLLBACKD_REDIS_URL=" + redis, "ROLLBACKD_QUEUE=" + s.queue, "ROLLBACKD_EXCHANGE=" + s.broker.Name("stock"),
		"ROLLBACKD_MAX_ATTEMPTS=2", "ROLLBACKD_RETRY_DELAYS=100ms,200ms", "ROLLBACKD_HTTP_ADDR=off"}, more...)
	s.track(s.queue, 100*time.Millisecond, 200*time.Millisecond)
	s.broker.TrackExchanges(s.broker.Name("stock"))
	s.replace = append(s.replace, strings.TrimPrefix(s.broker.Name("x"), "x."), "SUFFIX", stack.Addr(t, s.dsn), "MYSQL",
		stack.Addr(t, s.broker.URL), "RABBITMQ", command.Person(), "PERSON")
	return s
}

// track has the queues of a main queue deleted at the end.
func (s *shell) track(queue string, delays ...time.Duration) {
	s.broker.Track(rabbit.TopologyConfig{Queue: queue, Delays: delays}.Queues()...)
}

// run runs one command and notes it in the transcript.
func (s *shell) run(stdin string, args ...string) (code int) {
	s.t.Helper()
	stdout, stderr, code := runCLI(s.t, s.environ, stdin, args...)
	fmt.Fprintf(&s.script, "$ consumer %s\n%s", strings.Join(args, " "), stdout)
	if stderr != "" {
		fmt.Fprintf(&s.script, "-- stderr --\n%s", stderr)
	}
	if code != 0 {
		fmt.Fprintf(&s.script, "-- exit %d --\n", code)
	}
	s.script.WriteString("\n")
	return code
}

// answers runs a command that must end with this code and say this.
func (s *shell) answers(code int, want, stdin string, args ...string) (said string) {
	s.t.Helper()
	stdout, stderr, got := runCLI(s.t, s.environ, stdin, args...)
	assert.That(s.t, got == code && strings.Contains(stdout+stderr, want), "%v: exit %d, want %d and %q:\n%s%s", args, got,
		code, want, stdout, stderr)
	return stdout + stderr
}

// reads runs a command and reads the JSON that it prints.
func (s *shell) reads(into any, args ...string) (stderr string, code int) {
	s.t.Helper()
	stdout, stderr, code := runCLI(s.t, s.environ, "", args...)
	err := json.Unmarshal([]byte(stdout), into)
	require.That(s.t, err == nil, "%v: exit %d, %q, %q: %v", args, code, stdout, stderr, err)
	return stderr, code
}

var rollbackdTest = regexp.MustCompile(`rollbackd_test_\w+`)

var volatile = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`replay/[-0-9a-f]{36}/\d+`), "REPLAY"},
	{regexp.MustCompile(`20\d{6}T\d{6}Z`), "NOW"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "ACT"},
	{regexp.MustCompile(`republish/[-0-9a-f]{36}/\d+`), "REPUBLISH"},
	{regexp.MustCompile(`[-.\w]+/\d+/\d{15,}/\d+/\d+`), "WORKER"},
	{regexp.MustCompile(`rollbackd:[-\w]{43}`), "rollbackd:HASH"},
	{regexp.MustCompile(`taken/[0-9a-f]{32}`), "taken/ORIGIN"},
	{regexp.MustCompile(`for another \d+m?\d*s`), "for another WHILE"},
	{regexp.MustCompile(`\{"\$int64":"1\d{12}"\}`), `{"$int64":"MS"}`},
	{regexp.MustCompile(`"x-published-at-ms\\":\d+`), `"x-published-at-ms\":MS`},
	{regexp.MustCompile(`\b[\w%]*:\*\*\*@`), "USER:***@"},
	{regexp.MustCompile(`set_policy -p '[^']*'`), "set_policy -p 'VHOST'"},
	{regexp.MustCompile(`--apply-to (quorum_)?queues`), "--apply-to QUEUES"}, // quorum_queues from 3.12 on
	{rollbackdTest, "DATABASE"},
	{regexp.MustCompile(`(RABBITMQ/)[-\w%]+`), "${1}VHOST"},
	{regexp.MustCompile(`vhost '[^']*'`), "vhost 'VHOST'"},
	{regexp.MustCompile("consumer: warning: RabbitMQ .* stream_queue.*\n"), ""}, // only before 3.12
	{regexp.MustCompile("-- stderr --\n(-- exit|\n)"), "$1"},
	// MySQL puts parentheses around each part of an expression.
	{regexp.MustCompile("value is out of range in '[^']*'"), "value is out of range in 'EXPRESSION'"},
	{regexp.MustCompile(` {2,}`), "  "},
}

// golden compares the transcript.
func (s *shell) golden(name string) {
	s.t.Helper()
	got := strings.NewReplacer(s.replace...).Replace(s.script.String())
	for _, v := range volatile {
		got = v.pattern.ReplaceAllString(got, v.with)
	}
	golden.Is(s.t, filepath.Join("testdata", "servers", name+".golden"), got)
}

// daemon runs `consumer run`, from when it consumes until stop, or the end of the test.
func (s *shell) daemon(flags ...string) (stop func()) {
	s.t.Helper()
	stop = s.background(append([]string{"run"}, flags...)...)
	s.consumes()
	return stop
}

// works runs a daemon until a query gives this number.
func (s *shell) works(want int, query string) {
	s.t.Helper()
	stop := s.daemon()
	s.eventually(want, query)
	stop()
}

// background runs a command until stop, or the end of the test.
func (s *shell) background(args ...string) (stop func()) {
	end := s.begun(s.environ, args...)
	stop = sync.OnceFunc(func() {
		var code int
		_, s.log, code = end()
		assert.That(s.t, code == 0, "consumer %s: exit %d\n%s", args[0], code, s.log)
	})
	s.t.Cleanup(stop)
	return stop
}

// set changes settings, given without their prefix.
func (s *shell) set(pairs ...string) {
	for _, pair := range pairs {
		s.environ = append(s.environ, "ROLLBACKD_"+pair)
	}
}

// begun runs a command until end interrupts it.
func (s *shell) begun(environ []string, args ...string) (end func() (stdout, stderr string, code int)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	done := make(chan int, 1)
	var out, errOut bytes.Buffer
	go func() {
		done <- run(ctx, append([]string{"/usr/bin/consumer"}, args...), environ, strings.NewReader(""), &out, &errOut)
	}()
	return func() (stdout, stderr string, code int) {
		cancel()
		code = <-done
		return out.String(), errOut.String(), code
	}
}

// migrated is a shell on servers where everything is made.
func migrated(t *testing.T, more ...string) *shell {
	t.Helper()
	s := newShell(t, more...)
	migrate := func() { s.quietly("", "migrate") }
	stack.Tables(t, s.dsn, strings.Join(more, " "), migrate)
	migrate() // the queues
	return s
}

// db is the test's own pool.
func (s *shell) db() *sql.DB {
	s.t.Helper()
	if s.pool == nil {
		db := require.Get(sql.Open("mysql", s.dsn))(s.t)
		s.t.Cleanup(func() { _ = db.Close() })
		s.pool = db
	}
	return s.pool
}

func (s *shell) exec(statements ...string) {
	s.t.Helper()
	for _, statement := range statements {
		stack.Exec(s.t, s.db(), statement)
	}
}

// reserve lets an order have so many of a sku.
func (s *shell) reserve(order string, sku, quantity int) {
	s.t.Helper()
	s.exec(fmt.Sprintf("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) "+
		"VALUES ('%s', %d, %d, 1, UTC_TIMESTAMP(6))", order, sku, quantity))
}

// eventually waits until a query gives this number.
func (s *shell) eventually(want int, query string) {
	s.t.Helper()
	n := 0
	so := poll.Within(time.Minute, func() bool { n = stack.Number(s.t, s.db(), query); return n == want })
	require.That(s.t, so, "still not after a minute: %s gives %d, want %d", query, n, want)
}

// Given servers with nothing, with everything, and without a queue, then migrate makes what is missing, once, and
// --status says what that is.
func TestMigrateMakesWhatIsMissingOnce(t *testing.T) {
	s := newShell(t)
	s.play("migrate", map[string]func(){"a queue is deleted": func() { s.broker.Delete(s.queue + ".backstop") }})
}

// Given a rollback of an order that was never reserved, one that nobody can read, and a line that is no message at all,
// then commands list, explain, replay and discard what became of them; a Redis that is away hides nothing.
func TestDeadLettersAreListedExplainedAndReplayed(t *testing.T) {
	s := migrated(t)
	away := s.away(s.dsn, "REDIS")
	s.vars = append(s.vars, "$AWAY", away.Addr)
	s.play("dead-letters", nil)
}

func TestPublishSetsWhatTheDaemonReads(t *testing.T) {
	s := migrated(t)
	file := filepath.Join(t.TempDir(), "bodies")
	require.OK(t, os.WriteFile(file, []byte(`{"order_sn":"A-1","n":12}`+"\r\n"+`  {"order_sn":"A-2"}`), 0o600))
	for _, args := range [][]string{{"publish", file, "--key-field", "order_sn", "--tag", "order.cancelled"},
		{"publish", file}} {
		s.answers(exitDone, fmt.Sprintf("published 2 messages to exchange %q with routing key \"stock.rollback\"\n",
			s.broker.Name("stock")), "", args...)
	}
	for _, want := range []struct{ body, id, tag string }{
		{`{"order_sn":"A-1","n":12}`, "A-1", "order.cancelled"}, {`{"order_sn":"A-2"}`, "A-2", "order.cancelled"},
		{`{"order_sn":"A-1","n":12}`, "", ""}, {`{"order_sn":"A-2"}`, "", ""},
	} {
		d, ok := s.broker.Get(s.queue)
		assert.That(t, ok && string(d.Body) == want.body && d.MessageId == want.id && d.Type == want.tag &&
			d.DeliveryMode == rabbit.Persistent && d.ContentType == "application/json",
			"message %q, id %q, type %q, mode %d; want %+v", d.Body, d.MessageId, d.Type, d.DeliveryMode, want)
		if ms, ok := rabbit.Int(d.Headers["x-published-at-ms"]); !ok || time.Since(time.UnixMilli(ms)).Abs() > time.Minute {
			t.Errorf("x-published-at-ms = %v, want now", d.Headers["x-published-at-ms"])
		}
	}
}

func TestPublishGoesThroughManyWindowsAndOverlongLinesAndShowsHowFarItIs(t *testing.T) {
	s := migrated(t)
	line := "{\"order_sn\":1}\n"
	lines := strings.Repeat(line, 700) + `{"x":"` + strings.Repeat("a", strictjson.MaxBytes) + "\"}\n" +
		strings.Repeat(line, 2300)
	var out, errOut bytes.Buffer
	now := time.Now() // a window takes two seconds
	a := &command.App{Program: "x", Environ: s.environ, Stdin: strings.NewReader(lines), Stdout: &out, Stderr: &errOut,
		Now: func() time.Time { now = now.Add(2 * time.Second); return now }}
	code := perform(t.Context(), a, newRoot(a, commands()...), []string{"publish", "-", "--key-field=order_sn"})
	const want = "x: line 701 is larger than 262144 bytes\nx: published 1500 messages\nx: published 3000 messages\n" +
		"x: lines that were not published: 1\n"
	assert.That(t, code == exitFailed && strings.HasPrefix(out.String(), "published 3000 messages") &&
		errOut.String() == want, "exit %d, %q, %q; want %q", code, out.String(), errOut.String(), want)
	assert.Is(t, s.broker.Depth(s.queue), 3000, "messages in the queue")
}

// Given servers without tables and queues, a database that does not exist, and servers that are not there, then each
// command says what is missing and what makes it.
func TestAnErrorSaysWhatToDo(t *testing.T) {
	s := newShell(t)
	s.vars = append(s.vars, "$DSN", s.dsn, "$NONE", rollbackdTest.ReplaceAllString(s.dsn, "${0}_none"),
		"$NOMYSQL", s.away(s.dsn, "MYSQL").Through(s.dsn), "$URL", s.broker.URL,
		"$NORABBIT", s.away(s.broker.URL, "RABBITMQ").Through(s.broker.URL))
	s.play("errors", map[string]func(){
		"the queue is deleted":    func() { s.broker.Delete(s.queue) },
		"the letters are deleted": func() { s.broker.Delete(s.queue + ".dead") },
	})
}

// away is the address of a server under which nobody answers, and what the transcript calls it.
func (s *shell) away(url, name string) *stack.TCPProxy {
	s.t.Helper()
	proxy := stack.Proxy(s.t, stack.Addr(s.t, url))
	proxy.Refuse(true)
	s.replace = append(s.replace, proxy.Addr, name)
	return proxy
}

// play does what testdata/servers/NAME.script says, line by line, and holds what the program said against NAME.golden,
// if there is one. Lines that begin with a tab belong to the one above. A $NAME stands for what vars say.
//
//	$ ARGS             runs the program; below it, what it reads
//	quietly ARGS       the same, outside the transcript; it must succeed
//	exits N ARGS       a command that must end with this code, outside the transcript too; below it, what it says
//	file               is written to $FILE
//	dead               publishes each line below as a message, and lets a daemon make letters of them
//	daemon, stop       runs a daemon from here to there
//	sql STATEMENT      is for the database
//	wait N QUERY       until the query gives this number
//	env NAME=VALUE …   for all that follows
//	doctor NAME=VALUE … asks doctor, with these settings besides; below it, what must be among its checks, each as
//	                   LEVEL NAME = FOUND → DO, of which the last two may lack and FOUND may have gaps, …;
//	                   "exit N"; and "no TEXT", which none may have
//
// Any other line is one of steps.
func (s *shell) play(name string, steps map[string]func()) {
	s.t.Helper()
	script := filepath.Join("testdata", "servers", name)
	text := require.Get(os.ReadFile(script + ".script"))(s.t)
	s.file = filepath.Join(s.t.TempDir(), "letters.ndjson")
	s.vars = append(s.vars, "$QUEUE", s.queue, "$FILE", s.file)
	s.replace = append(s.replace, s.file, "FILE")
	stop := func() {}
	for _, paragraph := range strings.Split(strings.ReplaceAll(string(text), "\n\t", "\x00"), "\n") {
		paragraph = strings.NewReplacer(s.vars...).Replace(paragraph)
		line, below, _ := strings.Cut(paragraph, "\x00")
		below = strings.ReplaceAll(below, "\x00", "\n")
		step, rest, _ := strings.Cut(line, " ")
		switch step {
		case "", "#":
		case "$":
			s.run(below, words(s.t, rest)...)
		case "quietly":
			s.quietly(below, words(s.t, rest)...)
		case "exits":
			number, args, _ := strings.Cut(rest, " ")
			s.answers(require.Get(strconv.Atoi(number))(s.t), below, "", words(s.t, args)...)
		case "file":
			require.OK(s.t, os.WriteFile(s.file, []byte(below), 0o600))
		case "dead":
			s.dead(strings.Split(below, "\n")...)
		case "daemon":
			stop = s.daemon(words(s.t, rest)...)
		case "stop":
			stop()
		case "sql":
			s.exec(strings.ReplaceAll(rest+" "+below, "\n", " "))
		case "wait":
			number, query, _ := strings.Cut(rest, " ")
			n := require.Get(strconv.Atoi(number))(s.t)
			s.eventually(n, query)
		case "env":
			s.environ = append(s.environ, words(s.t, rest)...)
		case "doctor":
			s.says(below, words(s.t, rest)...)
		default:
			require.That(s.t, steps[line] != nil, "%s.script: what is %q?", script, line)
			steps[line]()
		}
	}
	if _, err := os.Stat(script + ".golden"); err == nil || s.script.Len() > 0 {
		s.golden(name)
	}
}

// played is a test that is its script, on servers where everything is made.
func played(t *testing.T, name string, more ...string) {
	t.Helper()
	migrated(t, more...).play(name, nil)
}

// quietly runs a command that must succeed, and leaves no trace in the transcript.
func (s *shell) quietly(stdin string, args ...string) {
	s.t.Helper()
	before := s.script.Len()
	require.Is(s.t, s.run(stdin, args...), exitDone, "exit %s", s.script.String()[before:])
	s.script.Truncate(before)
}

// dead makes dead letters of messages that cannot be applied.
func (s *shell) dead(bodies ...string) *shell {
	s.t.Helper()
	s.quietly(strings.Join(bodies, "\n"), "publish", "--key-field", "order_sn")
	s.works(len(bodies), "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	return s
}

// examine runs doctor with some settings besides, or instead of, those of the shell.
func (s *shell) examine(more ...string) (checks []doctor.Check, code int) {
	s.t.Helper()
	asked := &shell{t: s.t, environ: append(slices.Clip(s.environ), more...)}
	_, code = asked.reads(&checks, "doctor", "-o", "json")
	return checks, code
}

// says holds what doctor says, with these settings besides, against lines that it must fulfil; see play.
func (s *shell) says(wants string, more ...string) {
	s.t.Helper()
	checks, code := s.examine(more...)
	for want := range strings.Lines(wants) {
		if want = strings.TrimSpace(want); want != "" && !fulfilled(want, checks, code) {
			s.t.Errorf("with %q doctor does not fulfil %q (exit %d):\n%+v", more, want, code, checks)
		}
	}
}

// until asks doctor again and again until it says this.
func (s *shell) until(want string, more ...string) {
	s.t.Helper()
	if !poll.Within(time.Minute, func() bool {
		checks, code := s.examine(more...)
		return fulfilled(want, checks, code)
	}) {
		s.says(want, more...) // which shows what it says
	}
}

func fulfilled(want string, checks []doctor.Check, code int) bool {
	level, rest, _ := strings.Cut(want, " ")
	name, found, _ := strings.Cut(rest, " = ")
	found, do, _ := strings.Cut(found, " → ")
	said := slices.ContainsFunc(checks, func(c doctor.Check) bool {
		if level == "no" {
			return strings.Contains(string(c.Level)+" "+c.Name+" = "+c.Found+" → "+c.Do, rest)
		}
		return string(c.Level) == level && strings.Contains(c.Name, name) && strings.Contains(c.Do, do) &&
			!slices.ContainsFunc(strings.Split(found, "…"), func(p string) bool { return !strings.Contains(c.Found, p) }) &&
			(c.Do != "" || c.Level == doctor.OK || c.Level == doctor.Note)
	})
	switch level {
	case "no":
		return !said
	case "exit":
		return strconv.Itoa(code) == rest
	}
	return said && (level != string(doctor.Fail) || code == exitFailed)
}
