package deadletter_test

import "github.com/rollbackd/rollbackd/internal/test/example/producer"

// exampleServers are a RabbitMQ and a MySQL for one example, and a consumer that makes dead letters.
func exampleServers() *producer.Servers { return producer.All() }
