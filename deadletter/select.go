package deadletter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Selection says which letters are meant, and where they are found: a [Filter], a [File], a [Set] or [Rows].
type Selection interface {
	// String is what was asked for, for the story of a row.
	String() string

	// open says where a run takes the letters from, or what is wrong with it.
	open(ctx context.Context, r *run) (source, error)
}

// open finds the letters in the dead-letter queue. Those of a filter by bodies are few among many, so they are found by
// their rows, and the queue is left alone but for those whose rows keep too little; what lies there is stale then, see
// [Letters.Sweep]. A key is looked for in the queue, and so is what was discarded, which List does not show.
func (f Filter) open(ctx context.Context, r *run) (source, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	if f.due != nil {
		r.named(byItself)
		r.within = withinByItself
	}
	if !f.ByRows() || r.o.Discarded {
		r.choose(f)
		return fromQueue(ctx, r)
	}
	now, err := r.l.o.Records.Now(ctx)
	if err != nil {
		return nil, err
	}
	r.choose(Filter{All: true, Limit: f.Limit})
	f.Limit = 0
	return fromRows(ctx, r, Set{Filter: f, CutOff: now})
}

// ByRows reports whether the letters are found by their rows, and those in the queue are left behind as stale.
func (f Filter) ByRows() bool {
	return len(f.Keys) == 0 && (f.Body != "" || f.Order != "" || f.SKU != 0)
}

// File is what the lines of an export stand for, those that a filter chooses, whether or not the dead-letter queue
// still has the letters.
//
// A replay is for letters whose body a person has mended, and for a queue that was lost. A line's message must still
// have the line's identity: else its row would not be the one it is processed by. With a mended body the row takes the
// new body and its hash, and the event records both hashes. In the same transaction the identity under which a copy
// with the former body is filed (its key taken by another body) ends as discarded. So the letter with the former body,
// which is still in the dead-letter queue, is stale from the commit on, whoever meets it and wherever the process is
// killed: a replay drops it, and the daemon acks it when it is moved by hand. Nothing is lost by that: until the commit
// the row is dead and the letter good; after it the row has the new body, and if its message was not published, the row
// says failed with all of it, so that the same file can be replayed again.
//
// A discard reads of a line only group, tag and key, so it may lack its body.
//
// In the end the letters of what was replayed or discarded are dropped from the dead-letter queue, but for those of a
// conflict that was discarded; a run that is interrupted leaves that to the next replay.
type File struct {
	Name   string // for the story of each row
	Lines  io.Reader
	Filter Filter
}

// String is what was asked for.
func (f File) String() string { return fmt.Sprintf("%s from %q", f.Filter, f.Name) }

// Rows are messages of which every copy is gone, as rows keep them that are dead without a letter, or failed or
// abandoned long since. They can be replayed: a copy that turns up after all finds the row of this one and has no
// second effect.
//
// A row that moved since it was read stays as it is, and so does one whose body or headers were too large to be kept
// whole. Killed between reopening and publishing, the row says failed and nothing was sent: run it again an hour later.
type Rows struct {
	Rows    []dedup.Row
	Because string // what was asked for, for the story of each row
}

// String is what was asked for.
func (s Rows) String() string { return s.Because }

func (s Rows) open(_ context.Context, r *run) (source, error) {
	r.named("republish/")
	r.o.Force = true // they were judged by somebody else
	r.tally.Found = len(s.Rows)
	return &rowSource{run: r, rows: s.Rows, given: true}, nil
}

// Set is a set of dead letters that is frozen at a moment: the dead rows that a filter chooses and whose last
// transition is not later than CutOff. What dies later is not of it.
//
// Each letter is taken from its row, which is found through an index however long the queue is: the row is reopened,
// and the message that it keeps is published. The letters in the queue are stale then; [Letters.Sweep] drops them. Rows
// that keep too little of their message are looked for in the queue, all in one walk.
//
// A set may be replayed again after any error, by any process, and goes on.
type Set struct {
	Filter Filter
	CutOff time.Time // by the database's clock
	// Name is unlike that of every other set, 1 to 40 bytes: it stands in the owner of each row that is reopened, so that
	// another process can go on where this one dies.
	Name string
	// Confirmed is a moment by the database's clock: what was reopened under Name until then was published. What was
	// reopened later, and nobody has begun to process, is published again. Zero: nothing was.
	Confirmed time.Time
	// Since is the id of an event before the first that a run over the set has made; what became of these is counted.
	Since int64
}

// maxLeftOfSet bounds the letters that stay and are named.
const maxLeftOfSet = 500

// String is what was asked for.
func (s Set) String() string { return s.Filter.String() }

func (s Set) validate() error {
	if s.Name == "" || len(s.Name) > 40 || s.CutOff.IsZero() || s.Filter.Limit != 0 {
		return errors.New("a set wants a name of 1 to 40 bytes, a cut-off and no limit")
	}
	return s.Filter.Validate()
}

func (s Set) open(ctx context.Context, r *run) (source, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	r.named(s.prefix())
	r.within, r.tally.keep = withinByItself, maxLeftOfSet
	if !r.discard {
		if err := r.watch.recount(ctx, s.Since); err != nil {
			return nil, err
		}
	}
	return fromRows(ctx, r, s)
}

// prefix begins the owner of the rows that are reopened for a set.
func (s Set) prefix() string {
	if s.Name == "" {
		return "replay/"
	}
	return "run/" + s.Name + "/"
}

// query asks for the rows of a set, oldest first.
func (s Set) query(group string) dedup.Filter {
	q := s.Filter.query(group)
	q.UpTo, q.Oldest, q.Limit = s.CutOff, true, dedup.MaxListed
	return q
}
