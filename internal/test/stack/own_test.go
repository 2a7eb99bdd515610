package stack

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

func TestFrozenRedisDoesNotAnswerUntilThawed(t *testing.T) {
	t.Parallel()
	s := OwnRedis(t)

	s.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := pingRedis(ctx, s.Addr()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("ping of a frozen redis = %v, want a timeout", err)
	}
	s.Thaw()
	if err := pingRedis(t.Context(), s.Addr()); err != nil {
		t.Errorf("ping of a thawed redis = %v", err)
	}

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
