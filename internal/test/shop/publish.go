package shop

import (
	"context"
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// publishAtOnce is how many messages wait for their confirmations together.
const publishAtOnce = 1000

// Publish publishes the messages in their order and writes all answers into the ledger. It stops at the first one that
// was not confirmed. progress, if not nil, is told how many are confirmed.
func Publish(
	ctx context.Context, p *rabbit.Publisher, l *oracle.Ledger, sent []oracle.Sent, progress func(confirmed int),
) error {
	done := 0
	for chunk := range slices.Chunk(sent, publishAtOnce) {
		n, err := l.Publish(func(batch []rabbit.Publishing) []error { return p.Publish(ctx, batch) }, chunk)
		done += n
		if err != nil {
			return fmt.Errorf("publish %d messages, %d are confirmed: %w", len(sent), done, err)
		}
		if progress != nil {
			progress(done)
		}
	}
	return nil
}
