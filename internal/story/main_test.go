package story_test

import (
	"testing"

	"github.com/rollbackd/rollbackd/internal/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }
