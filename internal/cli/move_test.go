package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a classic queue that was there before, when its messages are moved, then they stand in the main queue, and what
// cannot work is said with what to do.
func TestMoveCarriesAnotherQueueOver(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	old := s.broker.Name("orders.cancelled")
	s.broker.DeclareQueue(old, nil)
	s.broker.Publish("", old, stack.Message{Body: []byte(`{"order_sn":"A-1"}`), MessageId: "A-1"})
	s.vars = append(s.vars, "$OLD", old)
	s.play("move", map[string]func(){
		"it is in the main queue": func() {
			if d, ok := s.broker.Get(s.queue); !ok || d.MessageId != "A-1" || d.Type != old {
				t.Errorf("in the main queue is %+v, %v", d, ok)
			}
		},
		"a message is too large": func() {
			s.broker.Publish("", old, stack.Message{
				MessageId: "large", Headers: map[string]any{"x": strings.Repeat("x", 130_980)},
			})
		},
	})
}

// Given a move that follows, when it is interrupted, then it has done what it was asked to.
func TestAMoveThatFollowsEndsWellWhenItIsInterrupted(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	old := s.broker.Name("orders.cancelled")
	s.broker.DeclareQueue(old, nil)
	s.run("", "migrate")
	s.broker.Publish("", old, stack.Message{Body: []byte(`{}`)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan int, 1)
	var stdout, stderr bytes.Buffer
	go func() {
		done <- run(ctx, []string{"/usr/bin/consumer", "move", "--from", old, "--follow"}, s.environ, strings.NewReader(""),
			&stdout, &stderr)
	}()
	poll.Until(t, "the message is moved", func() bool {
		return s.broker.Depth(s.queue) == 1 && s.broker.Unacked(old) == 0
	})
	cancel()
	if code := <-done; code != exitDone || !strings.Contains(stdout.String(), "1         moved from") {
		t.Errorf("exit %d, %q, %q", code, stdout.String(), stderr.String())
	}
}
