package cli

import (
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) {
	stack.Main(m, program.Remove)
}
