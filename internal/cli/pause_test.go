package cli

import (
	"fmt"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/poll"
)

func TestAPersonPausesTheFleetAndResumesIt(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	// given a daemon
	stop := s.daemon()
	// when it is paused
	s.run("", "pause")
	s.run("", "pause", "--for", "10m")
	s.run("", "pause", "--why", "a test", "--for", "48h")
	s.run("", "pause", "--why", "a test", "--for", "10m", "--by", "anna")
	s.wantConsumers(0)
	s.run("", "pause", "--why", "another test", "--by", "bert")
	s.run("", "pause", "--why", "another test", "--for", "20m", "--by", "bert", "--instead")
	s.run("", "pause", "-o", "json")
	s.wantConsumers(0)
	// then it goes on when it is resumed
	s.run("", "resume", "--by", "carl")
	s.run("", "resume")
	s.eventually(3, "SELECT COUNT(*) FROM consumer_log_act WHERE state = 'done'")
	s.consumes()
	stop()
	s.golden("pause")
}

// consumes waits until somebody consumes the main queue.
func (s *shell) consumes() {
	s.t.Helper()
	poll.Until(s.t, "somebody consumes", func() bool { return s.broker.Consumers(s.queue) > 0 })
}

// wantConsumers waits until so many do.
func (s *shell) wantConsumers(want int) {
	s.t.Helper()
	poll.Until(s.t, fmt.Sprint(want, " consume"), func() bool { return s.broker.Consumers(s.queue) == want })
}
