package consumer_test

import (
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) {
	stack.AtOnce(8)
	stack.Main(m)
}
