package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Given a message that failed for good and a dead-letter queue that refuses its letter, then every command says what is
// true, and reconcile does not send it again while its delivery waits.
func TestARefusedLetterIsToldAndNotMended(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	dead := rabbit.DeadQueue(s.queue)
	s.broker.Policy("full", dead, map[string]any{"max-length": 1, "overflow": "reject-publish"})
	p := rabbit.NewPublisher(rabbit.Config{URLs: []string{s.broker.URL}, Name: "test"})
	defer func() { _ = p.Close(t.Context()) }()
	filler := []rabbit.Publishing{{Key: dead, Message: rabbit.Message{MessageID: "filler",
		DeliveryMode: rabbit.Persistent}}}
	for !errors.Is(p.Publish(t.Context(), filler)[0], rabbit.ErrNacked) {
		if t.Context().Err() != nil {
			t.Fatal("the queue refuses nothing")
		}
	}
	s.run("{\"order\":\"bad\",\"id\":\"A-1\"}\n", "publish", "--key-field", "id")
	stop := s.daemon()
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND reason = 'malformed'")
	stop() // who looks takes the letters into its hands, which makes room
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"does not take its letter yet, and its delivery is held until then", []string{"log", "explain", "A-1"}},
		{"A-1", []string{"log", "list", "--status", "failed"}},
		{"malformed", []string{"log", "list", "--status", "failed"}},
	} {
		if stdout, stderr, code := runCLI(t, s.environ, "", tc.args...); code != exitDone ||
			!strings.Contains(stdout, tc.want) {
			t.Errorf("%v: exit %d, want %q in\n%s%s", tc.args, code, tc.want, stdout, stderr)
		}
	}
	if stdout, _, _ := runCLI(t, s.environ, "", "dlq", "list"); strings.Contains(stdout, "A-1") {
		t.Errorf("dlq list shows a letter that is not there:\n%s", stdout)
	}
	report, _ := s.reconcileJSON("--republish", "--overdue", "1ns")
	found := false
	for _, f := range report.Findings {
		if f.Key != "A-1" {
			continue
		}
		found = true
		if f.Kind != "overdue" || f.Mended || f.Failure != "" || !strings.Contains(f.Hindrance, "delivery waits") ||
			!strings.Contains(f.Cure, "log explain A-1") {
			t.Errorf("reconcile says %+v", f)
		}
	}
	if !found {
		out, _, _ := runCLI(t, s.environ, "", "log", "list")
		t.Fatalf("reconcile says nothing of it: %+v\n%s", report, out)
	}
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE msg_key = 'A-1' AND consumer_status = 2 AND replays = 0")
	// and when there is room, it is dead with its reason
	s.broker.Policy("full", dead, nil)
	stop = s.daemon()
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE msg_key = 'A-1' AND consumer_status = 3 AND reason = "+
		"'malformed' AND replays = 0")
	stop()
}
