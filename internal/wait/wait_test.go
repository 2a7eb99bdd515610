package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
)

func TestItWaitsForTheTimeOrTheEndOfTheContextWhicheverIsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped := errors.New("stopped")
		ctx, stop := context.WithCancelCause(t.Context())
		began := time.Now()
		if err := wait.For(ctx, time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v, want nothing after a minute", time.Since(began), err)
		}
		time.AfterFunc(time.Second, func() { stop(stopped) })
		began = time.Now()
		if err := wait.For(ctx, time.Minute); !errors.Is(err, stopped) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v, want the cause after a second", time.Since(began), err)
		}
	})
}
