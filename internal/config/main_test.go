package config

import (
	"testing"

	"go.uber.org/goleak"
)

// Load asks other packages whether a URL is good; none of them may leave a client behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
