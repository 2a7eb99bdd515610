package library_test

import (
	"context"
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	_ "github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// Given the programs with which docs/library.md begins, when a booking is cancelled, then its seat is free and its
// customer is told so, each once; both programs drain at SIGTERM.
func TestTheFirstProgramsOfTheLibraryDoWhatTheySay(t *testing.T) {
	dsn := stack.MySQL(t)
	broker := stack.AMQP(t)
	db := require.Get(sql.Open("mysql", dsn))(t)
	t.Cleanup(func() { _ = db.Close() })
	stack.Script(t, db, "tables.sql")
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./seats", "./mails")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(bin, name), args...)
		cmd.Env = append(os.Environ(), "MYSQL_DSN="+dsn, "AMQP_URL="+broker.URL)
		cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
		return cmd
	}
	for _, name := range []string{"seats", "mails"} {
		broker.Track(name, name+".dead", name+".backstop", name+".retry.1s", name+".retry.5s", name+".retry.30s",
			name+".retry.2m")
		cmd := command(name)
		require.OK(t, cmd.Start())
		t.Cleanup(func() {
			assert.OK(t, cmd.Process.Signal(syscall.SIGTERM))
			if err := cmd.Wait(); err != nil {
				t.Errorf("%s ended with %v", name, err)
			}
		})
		poll.Until(t, name+" consumes", func() bool { return broker.Consumers(name) > 0 })
	}
	for range 2 { // the second time it is a duplicate, or is still on its way
		require.OK(t, command("seats", "b1").Run())
	}
	poll.Until(t, "the mail", func() bool {
		const sent = "SELECT EXISTS (SELECT * FROM mail) AND NOT EXISTS (SELECT * FROM rollbackd_outbox)"
		return stack.Number(t, db, sent) == 1
	})
	for query, want := range map[string]int{
		"SELECT COUNT(*) FROM mail WHERE booking = 'b1' AND text = 'your seat is free again'": 1,
		"SELECT COUNT(*) FROM mail":                                   1,
		"SELECT COUNT(*) FROM seen WHERE tag = 'seat.free'":           1,
		"SELECT COUNT(*) FROM seat WHERE booking IS NULL":             1,
		"SELECT COUNT(*) FROM booking WHERE cancelled":                1,
		"SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1": 2,
	} {
		assert.Is(t, stack.Number(t, db, query), want, "%s", query)
	}
}
