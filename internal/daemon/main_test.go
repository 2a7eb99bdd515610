package daemon_test

import (
	"os"
	"testing"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/daemon"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// TestMain runs the tests, or, in a process that a test has started with childEnv, crashEnv or hangEnv set, a daemon
// with a handler or a hook that no product has.
func TestMain(m *testing.M) {
	if poison := os.Getenv(childEnv); poison != "" {
		os.Exit(runChild(daemon.Options{Handler: poisonedHandler{poison}}))
	}
	if point := os.Getenv(crashEnv); point != "" {
		os.Exit(runChild(daemon.Options{Hook: killAt(consumer.Point(point))}))
	}
	if point := os.Getenv(hangEnv); point != "" {
		os.Exit(runChild(daemon.Options{Hook: hangAt(consumer.Point(point))}))
	}
	stack.Main(m, program.Remove)
}
