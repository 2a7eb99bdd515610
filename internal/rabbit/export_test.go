package rabbit

// FillSocket acks without end, as many workers together might, until writing fails.
func FillSocket(s *Subscription) error {
	for {
		if err := s.ch.Ack(1, false); err != nil {
			return err
		}
	}
}
