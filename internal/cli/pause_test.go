package cli

import (
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/poll"
)

// Given a daemon, when a person pauses the fleet, then nobody consumes until the pause is ended; one that stands is
// only replaced on purpose.
func TestAPersonPausesTheFleetAndResumesIt(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	s.play("pause", map[string]func(){
		"nobody consumes": func() {
			poll.Until(t, "nobody consumes", func() bool { return s.broker.Consumers(s.queue) == 0 })
		},
		"somebody consumes": s.consumes,
	})
}

// consumes waits until somebody consumes the main queue.
func (s *shell) consumes() {
	s.t.Helper()
	poll.Until(s.t, "somebody consumes", func() bool { return s.broker.Consumers(s.queue) > 0 })
}
