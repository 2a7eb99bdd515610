package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Given a letter that a full queue refuses, when its row was moved and a connection ends with the copy that comes back
// in its place, then no queue is said to refuse that copy, because none has; and when its queue does, that is said.
func TestACopyThatNobodyRefusedIsSaidToBeRefusedByNoQueue(t *testing.T) {
	t.Parallel()
	health := healthOf(slog.New(slog.DiscardHandler))
	g := newHolding(health)
	says := func(want ...string) {
		t.Helper()
		if got := health.state(false).Degraded; !slices.Equal(got, want) {
			t.Errorf("degraded %q, want %q", got, want)
		}
	}
	full := fmt.Errorf("full: %w", rabbit.ErrNacked)
	said := func(h *heldItem, queue string) string { return queue + ": " + h.advice().Error() }
	h := &heldItem{item: &item{copy: publication{refused: full}}, queue: "q.dead", letter: true}
	h.id.Identity = dedup.Identity{Group: "g", Tag: "t", Key: "k"}

	g.add(t.Context(), h)
	says(said(h, "q.dead"))

	h.copy.refused, h.queue = nil, "q.retry.1s" // another copy, whose connection has ended
	g.again(t.Context(), h)
	says()

	h.copy.refused = errors.Join(full)
	g.again(t.Context(), h)
	says(said(h, "q.retry.1s"))

	h.copy.refused = nil
	g.again(t.Context(), h)
	g.remove(t.Context(), h)
	says()
	if n := g.size(); n != 0 || len(g.refused) != 0 || g.has(h.id.Identity) {
		t.Errorf("%d deliveries held, refused %v", n, g.refused)
	}
}
