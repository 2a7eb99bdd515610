package rabbit

import amqp "github.com/rabbitmq/amqp091-go"

// FillSocket writes on the subscription's channel, as acks of many workers might, until writing fails.
func FillSocket(s *Subscription) error {
	for {
		if err := s.ch.Publish("", "", !mandatory, !immediate, amqp.Publishing{Body: make([]byte, 1<<20)}); err != nil {
			return err
		}
	}
}
