package consumer_test

import (
	"flag"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// TestMain lets more tests run at once than there are processors: they wait most of the time, for leases, delays and
// servers. Who names a number gets that.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("8")
	}
	stack.Main(m)
}
