package view

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// awaitEvery is how often the second of two same requests looks for the answer of the first.
const awaitEvery = 50 * time.Millisecond

// Actor is the person that the guard let through, as the audit names him.
func Actor(ctx context.Context) operator.Actor { return operator.Actor{Name: admin.Who(ctx).Name} }

// Once does what somebody asks for unless it was done before, and then answers as it did before. While the first of two
// same requests is being done, the second waits for its answer for as long as wait says. What do refuses was not done,
// and may be asked for again.
func Once(
	ctx context.Context, o *operator.Operator, log *slog.Logger, r operator.OnceRequest, wait time.Duration,
	do func(id string) (operator.Answer, error),
) (answer operator.Answer, before bool, err error) {
	tick, end := time.NewTicker(awaitEvery), time.NewTimer(wait)
	defer tick.Stop()
	defer end.Stop()
	once, known, err := o.Begin(ctx, Actor(ctx), r)
	for errors.Is(err, operator.ErrRunning) {
		select {
		case <-tick.C:
			once, known, err = o.Begin(ctx, Actor(ctx), r)
			continue
		case <-end.C:
		case <-ctx.Done():
		}
		return answer, false, err
	}
	if err != nil || known != nil {
		if known != nil {
			answer = *known
		}
		return answer, known != nil, err
	}
	if answer, err = do(once.ActID); err != nil {
		if later := once.Release(ctx); later != nil {
			log.WarnContext(ctx, "a request that was not done stays taken for half a minute", "err", later)
		}
		return answer, false, err
	}
	if err := once.Finish(ctx, answer); err != nil {
		log.WarnContext(ctx, "the answer to a request could not be kept", "act", once.ActID, "err", err)
	}
	return answer, false, nil
}
