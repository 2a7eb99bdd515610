// Package wait lets time pass, but no longer than anybody wants it to. It knows nothing else, so that every package may
// import it.
package wait

import (
	"context"
	"time"
)

// For returns after d, or with the cause of ctx's end when ctx ends before.
func For(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
