package deadletter_test

import "github.com/rollbackd/rollbackd/internal/test/example"

// exampleServers are a RabbitMQ and a MySQL for one example, and a consumer that makes dead letters.
func exampleServers() *example.Servers { return example.All() }
