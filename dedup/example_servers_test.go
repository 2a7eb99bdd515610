package dedup_test

import "github.com/rollbackd/rollbackd/internal/test/example"

// exampleServers are a MySQL for one example.
func exampleServers() *example.Servers { return example.MySQL() }

// exampleLetters are a RabbitMQ and a MySQL for one example, with a dead letter.
func exampleLetters() *example.Servers {
	servers := example.All()
	servers.Dead("seats.free", "booking-1")
	return servers
}
