package stack

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestFrozenRedisDoesNotAnswerUntilThawed(t *testing.T) {
	t.Parallel()
	s := OwnRedis(t)

	s.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	assert.Error(t, pingRedis(ctx, s.Addr()), os.ErrDeadlineExceeded, "ping of a frozen redis")
	s.Thaw()
	assert.OK(t, pingRedis(t.Context(), s.Addr()), "ping of a thawed redis:")

	// A frozen server is killed and stopped all the same.
	s.Freeze()
	s.Stop()
	s.Start()
	s.Freeze()
	s.Kill()
}

func TestFaultThatDoesNotHappenFailsTheTest(t *testing.T) {
	s := OwnRedis(t)
	r := &recorder{TB: t}
	s.t = r
	s.Kill()
	if err := s.Freeze(); err == nil {
		t.Error("a dead server was frozen")
	}
	if _, err := s.Ctl("x"); err == nil {
		t.Error("redis has no control command and took one")
	}
	s.Start()
	if err := s.Start(); err == nil {
		t.Error("a running server was started")
	}
	s.t = t
	if len(r.errors) != 3 {
		t.Errorf("the test failed %d times, want 3: %q", len(r.errors), r.errors)
	}
}
