package shovel

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Given a rate, then no more messages go in any time than it allows, but for those of one turn, and few are in hand.
func TestARateIsKept(t *testing.T) {
	for _, tt := range []struct {
		rate     float64
		messages int
		atLeast  time.Duration
		prefetch int
	}{
		{0, 10_000, 0, 1000}, {0.01, 3, 200 * time.Second, 1}, {1, 10, 9 * time.Second, 2}, {10, 100, 9 * time.Second, 20},
		{10_000, 100_000, 9 * time.Second, 1000},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := pace{rate: tt.rate}
			assert.Is(t, p.prefetch(), tt.prefetch, "rate %v: prefetch", tt.rate)
			began, went := time.Now(), 0
			for went < tt.messages {
				n, err := p.turn(t.Context(), wait.For)
				require.That(t, err == nil && n >= 1, "rate %v: turn = %d, %v", tt.rate, n, err)
				p.took(n)
				went += n
			}
			took := time.Since(began)
			assert.That(t, took >= tt.atLeast && took <= tt.atLeast*6/5+time.Second,
				"rate %v: %d messages took %v, want at least %v and little more", tt.rate, went, took, tt.atLeast)
		})
	}
}
