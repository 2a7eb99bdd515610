package operator_test

import (
	"os"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// TestMain runs the tests, or, in a process that a test has started with childEnv set, a daemon that works on runs.
func TestMain(m *testing.M) {
	if settings := os.Getenv(childEnv); settings != "" {
		os.Exit(runChild(settings))
	}
	stack.Main(m)
}
