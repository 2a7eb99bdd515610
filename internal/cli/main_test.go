package cli

import (
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) {
	stack.AtOnce(4)
	stack.Main(m, program.Remove)
}
