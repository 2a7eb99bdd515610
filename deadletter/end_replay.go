package deadletter

import (
	"context"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// replayEnd: reopen the row (committed), publish the message (confirmed and routed), ack.
type replayEnd struct {
	*run
	publisher *rabbit.Publisher
	watch     *watch
	confirmed func(*letter) // called for each letter whose message is confirmed, whatever becomes of the ack
}

func toReplay(r *run, p *rabbit.Publisher, w *watch, confirmed func(*letter)) end {
	if r.o.DryRun {
		return &dryEnd{r, &r.tally.Replayed}
	}
	return &replayEnd{r, p, w, confirmed}
}

func (e *replayEnd) act(ctx context.Context, letters []*letter) error {
	fault := e.change(ctx, letters, e.reopen)
	if err := e.l.hook(pointReopened); err != nil {
		return err
	}
	fault = errors.Join(fault, e.publish(ctx, letters))
	for _, lt := range letters {
		if lt.why == "" {
			e.tally.mended(lt)
			e.watch.add(lt)
			e.confirmed(lt)
		}
	}
	if err := e.l.hook(pointPublished); err != nil {
		return err
	}
	return errors.Join(fault, e.finish(ctx, letters, &e.tally.Replayed))
}

// reopen makes the letters' rows start anew, under a name that no other call has.
func (e *replayEnd) reopen(ctx context.Context, letters []*letter, token string) []error {
	all := make([]dedup.Reopening, len(letters))
	for i, lt := range letters {
		all[i] = dedup.Reopening{From: lt.row, Entry: lt.entry(), Note: dedup.ReplayNote{
			By: e.o.By, Filter: e.asked, Token: lt.row.ReplayToken(token), Discarded: e.o.Discarded, Mended: lt.replacedBody,
		}}
	}
	rows, errs := e.l.o.Records.ReopenAll(ctx, all)
	for i, lt := range letters {
		if errs[i] == nil {
			lt.row.Version = rows[i].Version
		}
	}
	return errs
}

// publish sends the messages of all letters whose rows this run has just reopened, and of no other.
func (e *replayEnd) publish(ctx context.Context, letters []*letter) (fault error) {
	var batch []rabbit.Publishing
	var sent []*letter
	for _, lt := range letters {
		if lt.why == "" {
			sent = append(sent, lt)
			batch = append(batch, rabbit.Publishing{Key: e.l.o.Queue, Message: wire.Copy(lt.Delivery, e.l.o.Queue,
				wire.CopyOptions{
					Identity: lt.id, Replays: lt.row.Replays,
				})})
		}
	}
	if len(batch) == 0 {
		return nil
	}
	for i, err := range e.publisher.Publish(ctx, batch) {
		if err == nil {
			continue
		}
		sent[i].why, sent[i].err = WhyUnpublished, err
		if !errors.Is(err, rabbit.ErrUnsendable) { // the others would meet it too: do not reopen more rows
			fault = brokerError(fmt.Errorf("publish to queue %q: %w", e.l.o.Queue, err))
		}
	}
	return fault
}
