package daemon_test

import (
	"os"
	"testing"

	"github.com/rollbackd/rollbackd/internal/stack"
)

// TestMain runs the tests, or, in a process that a test has started with childEnv set, a daemon with a handler that no
// product has.
func TestMain(m *testing.M) {
	if poison := os.Getenv(childEnv); poison != "" {
		os.Exit(runChild(poison))
	}
	stack.Main(m, func() error { return os.RemoveAll(built.dir) })
}
