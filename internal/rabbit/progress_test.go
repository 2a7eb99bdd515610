package rabbit_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a narrow line, and a body for which there is no room and which takes longer than the client waits for a frame,
// when it is dropped as it comes, then the connection lives, and what came before it can be acked.
func TestABodyThatIsDroppedSlowlyEndsNoConnection(t *testing.T) {
	t.Parallel()
	b, q := fresh(t)
	u := require.Get(url.Parse(b.URL))(t)
	line := stack.Proxy(t, u.Host)
	cfg := config(line.Through(b.URL))
	cfg.Heartbeat = time.Second // the client waits three of them
	const share, large, rate = 1 << 20, 8 << 20, 1 << 20
	cfg.Budget = rabbit.NewBudget(share, 1)
	c := require.Get(rabbit.Dial(t.Context(), cfg))(t)
	defer c.Close() //nolint:errcheck // the test says what it wants of it
	p := publisher(t, config(b.URL))
	s := consume(t, c, q, 100)
	publishSizes(t, p, q, "small", times(200, 100)...)
	poll.Until(t, "the window is wide", func() bool {
		ackSome(t, s)
		return s.Acked() == 200 && rabbit.Window(s) >= 50
	})
	// The first is larger than a share and comes through alone; the second is dropped.
	publishSizes(t, p, q, "large", large)
	first := collect(t, s, 1)[0]
	line.Rate(rate)
	before := line.Carried()
	publishSizes(t, p, q, "large", large)
	poll.Until(t, "all of it was carried, or the connection is over", func() bool {
		return line.Carried() >= before+large || c.Err() != nil
	})
	line.Rate(0)
	if err := c.Err(); err != nil {
		t.Fatalf("after %d bytes the connection was over: %v", line.Carried()-before, err)
	}
	require.OK(t, s.Ack(first.Tag, false))
	if got := collect(t, s, 1)[0]; len(got.Body) != large {
		t.Errorf("a body of %d bytes came again, want %d", len(got.Body), large)
	}
}
