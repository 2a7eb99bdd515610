package lock_test

import (
	"github.com/rollbackd/rollbackd/internal/test/example"
)

// exampleServer is a Redis for one example.
func exampleServer() (url string, end func()) { return example.Redis() }
