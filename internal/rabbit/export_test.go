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

// Held is what a subscription's deliveries in hand weigh, but for one that is larger than a share.
func Held(s *Subscription) int64 {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	return s.ledger.held
}

// Shed is how many deliveries a subscription has yet to give back. For the goroutine that collects.
func Shed(s *Subscription) int { return len(s.shed) }

// Window is how many deliveries the consumer of the moment may have unsettled. For the goroutine that collects.
func Window(s *Subscription) int { return s.window }

// Sharers is how many subscriptions a subscription's budget knows.
func Sharers(s *Subscription) int { return len(s.ledger.budget.subs) }

// TranslateOpen is what becomes of an error of the client on a connection that stood.
var TranslateOpen = translateOpen

// Where is what is shown of an AMQP URL: host, port and vhost.
func Where(raw string) string {
	e, err := parseURL(raw)
	if err != nil {
		return "an invalid URL"
	}
	return e.where
}

// Retired reports whether a subscription is between two consumers.
func Retired(s *Subscription) bool { return s.betweenConsumers() }
