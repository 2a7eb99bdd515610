package dedup_test

import (
	"github.com/rollbackd/rollbackd/internal/test/example"
)

// exampleServers are a MySQL for one example.
func exampleServers() *example.Servers { return example.MySQL() }
