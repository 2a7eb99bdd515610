package deadletter

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// fileSource is an export: its lines, and in the end the letters of the same messages in the dead-letter queue.
type fileSource struct {
	*run
	lines  *bufio.Reader
	number int // of the last line
	ended  bool

	// Of the messages that are confirmed: the replays that the run gave their rows, and what they say they are.
	sent   map[dedup.Identity]int
	owners map[dedup.Identity]bool
}

func (f File) open(ctx context.Context, r *run) (source, error) {
	if err := f.Filter.Validate(); err != nil {
		return nil, err
	}
	r.choose(f.Filter)
	s := &fileSource{
		run: r, lines: bufio.NewReaderSize(f.Lines, maxLine), sent: map[dedup.Identity]int{},
		owners: map[dedup.Identity]bool{},
	}
	r.done = func(lt *letter) { s.sent[lt.id.Identity], s.owners[lt.own.Identity] = lt.row.Replays, true }
	err := r.dial(ctx)
	if err == nil {
		err = r.queue.count(ctx)
	}
	return s, err
}

func (s *fileSource) next(context.Context) ([]*letter, error) {
	if s.ended || s.tally.enough() {
		return nil, io.EOF
	}
	var letters []*letter
	for len(letters) < window && !s.ended {
		text, err := s.line()
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if lt := s.readLine(text, err); lt != nil {
			letters = append(letters, lt)
		}
	}
	s.tally.Found = s.tally.Seen
	return letters, nil
}

// line is the next line. The rest of one that is too long, which is bufio.ErrBufferFull, is passed over.
func (s *fileSource) line() ([]byte, error) {
	s.number++
	text, err := s.lines.ReadSlice('\n')
	if errors.Is(err, io.EOF) {
		s.ended, err = true, nil
	}
	for whole := err; errors.Is(whole, bufio.ErrBufferFull); {
		_, whole = s.lines.ReadSlice('\n')
		s.ended = errors.Is(whole, io.EOF)
	}
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, fmt.Errorf("read line %d: %w", s.number, err)
	}
	return text, err
}

// readLine makes a letter of a line; nil when it is empty or bad, which is noted.
func (s *fileSource) readLine(text []byte, readErr error) *letter {
	if text = bytes.TrimSpace(text); len(text) == 0 {
		return nil
	}
	s.tally.Seen++
	lt, why, err := new(letter), WhyBadLine, fmt.Errorf("is longer than %d bytes", maxLine)
	if !errors.Is(readErr, bufio.ErrBufferFull) {
		lt, why, err = s.message(text)
	}
	if err != nil {
		s.tally.leave(lt, why, fmt.Errorf("line %d %w", s.number, err))
		return nil
	}
	return lt
}

// message makes a letter of a line: with the message, which must have the line's identity, if it is to be sent again,
// else nothing but its name.
func (s *fileSource) message(text []byte) (*letter, Why, error) {
	ln, err := parseLine(text, s.discard)
	named := wire.Identified{Identity: dedup.Identity{Group: s.l.o.Group, Tag: ln.Tag, Key: ln.Key}}
	lt := &letter{own: named, id: named, formerRow: absent, stored: true, line: &ln}
	lt.info.Reason = ln.Reason
	lt.Body = ln.Body // to choose by, if the line has it
	switch {
	case err != nil:
		return lt, WhyBadLine, err
	case ln.Group != "" && ln.Group != s.l.o.Group:
		return lt, WhyOtherIdentity, fmt.Errorf("is of group %s, not %s", ln.Group, s.l.o.Group)
	case s.discard:
		if err := named.Identity.Validate(); err != nil {
			return lt, WhyBadLine, fmt.Errorf("names no row: %w", err)
		}
		lt.info.Reason = "" // the row knows
		return lt, "", nil
	}
	d, err := wire.Exported(ln.Properties, ln.Headers, ln.Body)
	if err != nil {
		return lt, WhyBadLine, fmt.Errorf("cannot be made a message: %w", err)
	}
	sent := s.l.read(taken{Delivery: d})
	sent.line = &ln
	conflict, _ := wire.Conflict(sent.own, d.Body)
	switch {
	case sent.own.Identity == named.Identity:
	case !sent.filed && conflict.Identity == named.Identity:
		sent.id = conflict
	default:
		return lt, WhyOtherIdentity, fmt.Errorf("has the message of %v", sent.own.Identity)
	}
	return sent, "", nil
}

func (s *fileSource) lookUp(ctx context.Context, letters []*letter) error {
	return s.look(ctx, letters, s.lookUpLines)
}

// lookUpLines finds the rows of letters that come from a file, and what stands against them.
//
// A line that is filed as conflict goes the way of its letter: the row of its key may be gone, or have this body by
// now.
func (s *fileSource) lookUpLines(ctx context.Context, letters []*letter, discardedToo bool) error {
	var conflicts, ordinary []*letter
	for _, lt := range letters {
		lt.blockedBy, lt.replacedBody = "", nil
		if !s.discard && lt.line.Tag == wire.TagConflict {
			s.cut(lt, lt.line.BodyCut || lt.line.HeadersCut)
			conflicts = append(conflicts, lt)
		} else {
			ordinary = append(ordinary, lt)
		}
	}
	if err := s.l.lookUp(ctx, conflicts, discardedToo); err != nil {
		return err
	}
	rows, err := s.l.o.Records.LookUp(ctx, unique(mapped(ordinary, (*letter).identity)))
	if err != nil {
		return err
	}
	for _, lt := range ordinary {
		switch lt.row = rows[lt.id.Identity]; {
		case s.discard:
		case lt.id.Identity != lt.own.Identity || !differs(lt):
			s.cut(lt, lt.line.BodyCut || lt.line.HeadersCut)
		default:
			if err := s.mend(ctx, lt); err != nil {
				return err
			}
		}
	}
	return nil
}

// cut notes a line that has not all of its message. What only lacks headers a person can vouch for.
func (s *fileSource) cut(lt *letter, is bool) {
	if is && (lt.line.BodyCut || !s.o.Force) {
		lt.blockedBy = WhyCut
	}
}

// mend prepares a letter whose body is not its row's.
func (s *fileSource) mend(ctx context.Context, lt *letter) error {
	whole, err := s.l.o.Records.Read(ctx, lt.id.Identity)
	if err != nil {
		return err
	}
	// The body as the log keeps it may be its beginning, and is not another one.
	s.cut(lt, lt.line.HeadersCut || bytes.Equal(whole.Body, lt.Body))
	lt.replacedBody = new(dedup.Entry)
	if sum := sha256.Sum256(whole.Body); bytes.Equal(sum[:], whole.BodyHash) {
		former, _ := wire.Conflict(lt.own, whole.Body)
		*lt.replacedBody = dedup.Entry{
			Identity: former.Identity, BodyHash: sum, MessageID: whole.MessageID, Body: whole.Body, Properties: whole.Properties,
		}
	}
	return nil
}

// close drops the letters of what was confirmed from the queue, as far as they were there before.
func (s *fileSource) close(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	if !s.tally.enough() {
		s.tally.missed()
	}
	if len(s.sent) == 0 {
		return nil
	}
	_, dropped, err := s.sweep(ctx, func(lt *letter) bool { return s.owners[lt.own.Identity] }, s.sent)
	s.tally.Duplicates += dropped
	return err
}
