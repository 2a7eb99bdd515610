package deadletter

import (
	"context"
	"fmt"
	"io"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Replay puts the letters that f chooses back on the main queue, their rows reopened. The set is frozen: what was in
// the dead-letter queue when Replay began. Letters that stay, and why, are in the result, which is good beside an error
// too.
//
// The error says why the run ended early: a server that went away, too many failures, or ctx. Letters that were not
// finished are in the queue; run it again. Nothing is lost and nothing has two effects, also when the process is killed
// half-way.
func (l *Letters) Replay(ctx context.Context, f Filter, o ReplayOptions) (Result, error) {
	r := newRun(l, f, o, f.String())
	err := r.connected(ctx, func(q *queue, p *rabbit.Publisher) error {
		from, err := fromQueue(ctx, r, q, false)
		if err != nil {
			return err
		}
		w := newWatch(r, q.conn)
		return move(ctx, r, from, toReplay(r, p, w, func(*letter) {}), w)
	})
	if err != nil {
		return r.tally.Result, fmt.Errorf("replay dead letters: %w", err)
	}
	return r.tally.Result, nil
}

// ReplayFrom replays letters from the lines of an export, those that f chooses: their rows are reopened and their
// messages published as Replay does, never one without the other, whether or not the dead-letter queue still has them.
// It is for letters whose body a person has mended, and for a queue that was lost.
//
// A line's message must still have the line's identity: else its row would not be the one it is processed by. With a
// mended body the row takes the new body and its hash, and the event records both hashes. In the same transaction the
// identity under which a copy with the former body is filed (its key taken by another body) ends as discarded. So the
// letter with the former body, which is still in the dead-letter queue, is stale from the commit on, whoever meets it
// and wherever the process is killed: a replay drops it, and the daemon acks it when it is moved by hand. Nothing is
// lost by that: until the commit the row is dead and the letter good; after it the row has the new body, and if its
// message was not published, the row says failed with all of it, so that the same file can be replayed again.
//
// In the end it drops the letters of the replayed messages from the dead-letter queue; a run that is interrupted leaves
// that to the next replay.
func (l *Letters) ReplayFrom(
	ctx context.Context, name string, lines io.Reader, f Filter, o ReplayOptions,
) (Result, error) {
	r := newRun(l, f, o, fmt.Sprintf("%s from %q", f.String(), name))
	err := r.connected(ctx, func(q *queue, p *rabbit.Publisher) error {
		from, err := fromFile(ctx, r, q, lines)
		if err != nil {
			return err
		}
		w := newWatch(r, q.conn)
		return move(ctx, r, from, toReplay(r, p, w, from.sweep.confirmed), w)
	})
	if err != nil {
		return r.tally.Result, fmt.Errorf("replay dead letters from %s: %w", name, err)
	}
	return r.tally.Result, nil
}

// Discard ends the letters that f chooses: their rows say discarded, by whom and why, and they leave the queue. For the
// rest it is like Replay.
func (l *Letters) Discard(ctx context.Context, f Filter, o DiscardOptions) (Result, error) {
	r := newRun(l, f, ReplayOptions{By: o.By, DryRun: o.DryRun, Progress: o.Progress}, f.String())
	err := r.connected(ctx, func(q *queue, _ *rabbit.Publisher) error {
		from, err := fromQueue(ctx, r, q, true)
		if err != nil {
			return err
		}
		return move(ctx, r, from, toDiscard(r, o.Why, func(*letter) {}), newWatch(r, q.conn))
	})
	if err != nil {
		return r.tally.Result, fmt.Errorf("discard dead letters: %w", err)
	}
	return r.tally.Result, nil
}

// DiscardFrom ends what the lines of an export stand for, those that f chooses: their rows say discarded, by whom and
// why, whether or not the dead-letter queue has a letter of them; one that it has is dropped, but for a conflict's,
// which the next replay drops. Of a line only group, tag and key are read, so it may lack its body.
func (l *Letters) DiscardFrom(
	ctx context.Context, name string, lines io.Reader, f Filter, o DiscardOptions,
) (Result, error) {
	r := newRun(l, f, ReplayOptions{By: o.By, DryRun: o.DryRun, Progress: o.Progress},
		fmt.Sprintf("%s from %q", f.String(), name))
	err := r.connected(ctx, func(q *queue, _ *rabbit.Publisher) error {
		from, err := fromFile(ctx, r, q, lines)
		if err != nil {
			return err
		}
		names := &nameSource{from}
		from.discard = true
		return move(ctx, r, names, toDiscard(r, o.Why, from.sweep.confirmed), newWatch(r, q.conn))
	})
	if err != nil {
		return r.tally.Result, fmt.Errorf("discard dead letters from %s: %w", name, err)
	}
	return r.tally.Result, nil
}

// Republish sends messages again of which every copy is gone, as their rows keep them: rows that are dead without a
// letter, or failed or abandoned long since. It goes the way of a replay: the row is reopened, by a compare-and-set
// with the version that rows have and under a name that nobody else uses; that is committed; then the message is
// published to the main queue, confirmed and routed. A copy that turns up after all finds the row of this one and has
// no second effect.
//
// A row that moved since it was read stays as it is, and so does one whose body or headers were too large to be kept
// whole. Killed between the two steps, the row says failed and nothing was sent: run it again an hour later.
func (l *Letters) Republish(ctx context.Context, rows []dedup.Row, o RepublishOptions) (Result, error) {
	r := newRun(l, Filter{All: true}, ReplayOptions{By: o.By, Progress: o.Progress, token: "republish/"}, o.Because)
	err := r.publishing(ctx, func(p *rabbit.Publisher) error {
		w := newWatch(r, nil) // which watches none
		return move(ctx, r, fromRows(r, rows), toReplay(r, p, w, func(*letter) {}), w)
	})
	if err != nil {
		return r.tally.Result, fmt.Errorf("republish messages: %w", err)
	}
	return r.tally.Result, nil
}
