package deadletter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// WhyCut says that a row keeps too little of its message to send it again. It never passes: get the message from its producer.
const WhyCut Why = "cut"

// RepublishOptions say how to republish.
type RepublishOptions struct {
	// By is the person or process, Because what was asked for: both stand in the story of each row.
	By, Because string
	// Progress, if set, is called after every window of rows, by the goroutine that called Republish.
	Progress func(Progress)
}

// RepublishResult is what Republish did.
type RepublishResult struct {
	Republished int
	Left        map[dedup.Key]Left
}

// Republish sends messages again of which every copy is gone, as their rows keep them: rows that are dead without a letter,
// or failed or abandoned long since. It goes the way of a replay: the row is reopened, by a compare-and-set with the
// version that rows have and under a name that nobody else uses; that is committed; then the message is published to the
// main queue, confirmed and routed. A copy that turns up after all finds the row of this one and has no second effect.
//
// A row that moved since it was read stays as it is, and so does one whose body or headers were too large to be kept
// whole. Killed between the two steps, the row says failed and nothing was sent: run it again an hour later.
func (l *Letters) Republish(ctx context.Context, rows []dedup.Row, o RepublishOptions) (RepublishResult, error) {
	res := RepublishResult{Left: map[dedup.Key]Left{}}
	publisher := rabbit.NewPublisher(l.amqp())
	err := l.republish(ctx, publisher, rows, o, &res)
	err = errors.Join(err, publisher.Close(context.WithoutCancel(ctx)))
	if err != nil {
		return res, fmt.Errorf("republish messages: %w", err)
	}
	return res, nil
}

func (l *Letters) republish(ctx context.Context, publisher *rabbit.Publisher, rows []dedup.Row, o RepublishOptions, res *RepublishResult) error {
	token := "republish/" + uuid.NewString() + "/"
	for done := 0; done < len(rows); {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		some := rows[done:min(done+window, len(rows))]
		work, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), windowTimeout, fmt.Errorf("a window of messages took over %v", windowTimeout))
		again := make([]*again, len(some))
		for i, row := range some {
			again[i] = newAgain(row, fmt.Sprintf("%s%d", token, done+i))
		}
		err := l.reopenAll(work, again, o)
		if killed := l.at(PointReopened); killed != nil {
			cancel()
			return killed
		}
		err = errors.Join(err, l.sendAgain(work, publisher, again))
		cancel()
		for _, a := range again {
			if a.err == nil {
				res.Republished++
				continue
			}
			res.Left[a.row.Key] = Left{Tag: a.row.Tag, Key: a.row.Name, Reason: a.row.Reason, Why: a.why, Error: a.err.Error()}
		}
		done += len(some)
		if o.Progress != nil {
			o.Progress(Progress{Seen: done, Found: len(rows)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// again is one message on its way.
type again struct {
	row     dedup.Row // as it was judged, later as it was reopened
	token   string
	message rabbit.Message
	why     Why
	err     error // why it was not sent
}

func newAgain(row dedup.Row, token string) *again { return &again{row: row, token: token} }

// reopenAll reopens the rows, several at a time. The error is that of a database that does not answer.
func (l *Letters) reopenAll(ctx context.Context, all []*again, o RepublishOptions) error {
	var wg sync.WaitGroup
	next := make(chan *again)
	for range min(writers, len(all)) {
		wg.Go(func() {
			for a := range next {
				a.why, a.err = l.reopenKept(ctx, a, o)
			}
		})
	}
	for _, a := range all {
		next <- a
	}
	close(next)
	wg.Wait()
	for _, a := range all {
		if isFault(a.err) {
			return a.err
		}
	}
	return nil
}

func (l *Letters) reopenKept(ctx context.Context, a *again, o RepublishOptions) (Why, error) {
	row, err := l.o.Records.Read(ctx, a.row.Key)
	if err != nil {
		return WhyFailed, err
	}
	if row.Version != a.row.Version {
		return WhyMoved, fmt.Errorf("it was %v and is %v now: %w", a.row.Status, row.Status, dedup.ErrLost)
	}
	d, id, err := l.kept(row)
	if err != nil {
		return WhyCut, err
	}
	if row.Tag == wire.TagConflict {
		if why, err := l.stillConflict(ctx, d); err != nil {
			return why, err
		}
	}
	var reopened dedup.Row
	err = insist(ctx, func() (err error) {
		reopened, err = l.o.Records.Reopen(ctx, row, dedup.Entry{Key: row.Key}, dedup.ReplayNote{By: o.By, Filter: o.Because, Token: a.token})
		return err
	})
	if err != nil {
		return whyNot(err), err
	}
	a.row = reopened
	a.message = wire.Copy(d, l.o.Queue, wire.CopyOptions{Identity: id, Replays: reopened.Replays})
	return "", nil
}

// stillConflict makes sure that another body still has the key of a message that is filed as conflict: else the daemon would apply
// it, or take it for a duplicate, and its row would never end.
func (l *Letters) stillConflict(ctx context.Context, d rabbit.Delivery) (Why, error) {
	own, _ := wire.Identify(l.o.Group, l.keyFrom, l.o.Queue, d)
	rows, err := l.o.Records.LookUp(ctx, []dedup.Key{own.Key})
	if err != nil {
		return WhyFailed, err
	}
	switch row := rows[own.Key]; {
	case row.Status == dedup.Absent:
		return WhyKeyTaken, fmt.Errorf("another body had the key of %v, and that row is gone: replay it from an export with force", own.Key)
	case bytes.Equal(row.BodyHash, own.BodyHash[:]):
		return WhyKeyTaken, fmt.Errorf("by now the row of %v has its body: this one stands for nothing", own.Key)
	}
	return "", nil
}

// sendAgain publishes the messages of all rows that were reopened, and of no other.
func (l *Letters) sendAgain(ctx context.Context, publisher *rabbit.Publisher, all []*again) (fault error) {
	var batch []rabbit.Publishing
	var sent []*again
	for _, a := range all {
		if a.err == nil {
			sent = append(sent, a)
			batch = append(batch, rabbit.Publishing{Key: l.o.Queue, Message: a.message})
		}
	}
	if len(batch) == 0 {
		return nil
	}
	for i, err := range publisher.Publish(ctx, batch) {
		if err == nil {
			continue
		}
		sent[i].why, sent[i].err = WhyUnpublished, err
		if !errors.Is(err, rabbit.ErrUnsendable) {
			fault = brokerError(fmt.Errorf("publish to queue %q: %w", l.o.Queue, err))
		}
	}
	return fault
}

// Kept says why a row does not hold its whole message, or nil. The row must come from Log.Read.
func (l *Letters) Kept(row dedup.Row) error {
	_, _, err := l.kept(row)
	return err
}

// kept makes the message anew from its row. It must be the very message that the row stands for, to the last byte.
func (l *Letters) kept(row dedup.Row) (rabbit.Delivery, wire.Identity, error) {
	var d rabbit.Delivery
	hash := sha256.Sum256(row.Body)
	switch {
	case row.Body == nil:
		return d, wire.Identity{}, errors.New("its row keeps no body")
	case len(row.BodyHash) > 0 && !bytes.Equal(row.BodyHash, hash[:]), len(row.BodyHash) == 0 && len(row.Body) >= dedup.MaxBody:
		return d, wire.Identity{}, fmt.Errorf("its row keeps only the first %d bytes of its body", len(row.Body))
	}
	if isCut(row.Properties) {
		return d, wire.Identity{}, errors.New("its row keeps not all of its headers")
	}
	if len(row.Properties) > 0 {
		var err error
		if d, err = wire.UnmarshalProperties(row.Properties); err != nil {
			return d, wire.Identity{}, err
		}
	}
	d.Body = row.Body
	id, _ := wire.Identify(l.o.Group, l.keyFrom, l.o.Queue, d) // one that is filed has a key too
	if row.Tag == wire.TagConflict {
		id, _ = wire.Conflict(id, d.Body)
	}
	if id.Key != row.Key {
		return d, id, fmt.Errorf("what its row keeps of it names another message, %v: ROLLBACKD_KEY_FROM was changed, or its headers were too large to be kept", id.Key)
	}
	return d, id, nil
}
