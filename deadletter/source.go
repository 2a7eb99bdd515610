package deadletter

import (
	"context"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// source is where letters come from: the dead-letter queue, the lines of an export, or rows of the log.
type source interface {
	// next takes some letters; io.EOF when there are no more.
	next(ctx context.Context) ([]*letter, error)
	// lookUp finds the rows of letters, and what stands against them.
	lookUp(ctx context.Context, letters []*letter) error
	// judge says what becomes of a letter that was looked up.
	judge(lt *letter) (verdict, Why)
	// close lets go of what was not taken. It gets why the run ended early, and returns that, or what goes wrong here.
	close(ctx context.Context, err error) error
}

// byRow judges letters by their rows, as decide says.
type byRow struct {
	*run
	discard bool

	// Of the last look at rows:
	elapsed   time.Duration // since the run began
	retention time.Duration // how long an ended identity is remembered
}

// look looks at the rows of letters in the way of a source.
func (b *byRow) look(
	ctx context.Context, letters []*letter, lookUp func(context.Context, []*letter, bool) error,
) (err error) {
	b.elapsed = time.Since(b.began)
	if err := lookUp(ctx, letters, b.o.Discarded); err != nil {
		return err
	}
	b.retention, err = b.l.o.remembers(ctx)
	return err
}

func (b *byRow) judge(lt *letter) (verdict, Why) {
	age, dated := lt.age(time.Now())
	return decide(lt.row, situation{
		discard: b.discard, discarded: b.o.Discarded, force: b.o.Force, token: b.token, elapsed: b.elapsed,
		keyTaken: lt.row.Status == dedup.Absent && lt.conflicted,
		age:      age, dated: dated, retention: b.retention, most: b.l.o.MaxReplays,
	})
}
