package consumer_test

import "github.com/rollbackd/rollbackd/internal/test/example/producer"

// exampleServers are a RabbitMQ and a MySQL for one example, and a producer.
func exampleServers() *producer.Servers { return producer.All() }
