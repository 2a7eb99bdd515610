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
	byRow
	lines  *bufio.Reader
	number int // of the last line
	ended  bool
	sweep  *sweep
	make   func(text []byte) (ln Line, lt *letter, why Why, err error) // a letter of a line, or why not
}

func fromFile(ctx context.Context, r *run, q *queue, file io.Reader) (*fileSource, error) {
	sweep, err := newSweep(ctx, r, q)
	if err != nil {
		return nil, err
	}
	s := &fileSource{byRow: byRow{run: r}, lines: bufio.NewReaderSize(file, maxLine), sweep: sweep}
	s.make = s.message
	return s, nil
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
	bad := func(why Why, ln Line, err error) *letter {
		text := fmt.Sprintf("line %d %v", s.number, err)
		s.tally.Left = append(s.tally.Left, Left{Tag: ln.Tag, Key: ln.Key, Reason: ln.Reason, Why: why, Error: text})
		return nil
	}
	if errors.Is(readErr, bufio.ErrBufferFull) {
		return bad(WhyBadLine, Line{}, fmt.Errorf("is longer than %d bytes", maxLine))
	}
	ln, lt, why, err := s.make(text)
	if err != nil {
		return bad(why, ln, err)
	}
	lt.line = &ln
	return lt
}

// message makes a letter of a line that is to be sent again: with the message, which must have the line's identity.
func (s *fileSource) message(text []byte) (Line, *letter, Why, error) {
	ln, err := ParseLine(text)
	if err != nil {
		return ln, nil, WhyBadLine, err
	}
	d, err := wire.Exported(ln.Properties, ln.Headers, ln.Body)
	if err != nil {
		return ln, nil, WhyBadLine, fmt.Errorf("cannot be made a message: %w", err)
	}
	lt := s.l.find.read(taken{Delivery: d})
	want := dedup.Identity{Group: s.l.o.Group, Tag: ln.Tag, Key: ln.Key}
	conflict, _ := wire.Conflict(lt.own, d.Body)
	switch {
	case ln.Group != "" && ln.Group != s.l.o.Group:
		return ln, nil, WhyOtherIdentity, s.otherGroup(ln)
	case lt.own.Identity == want:
	case !lt.filed && conflict.Identity == want:
		lt.id = conflict
	default:
		return ln, nil, WhyOtherIdentity, fmt.Errorf("has the message of %v", lt.own.Identity)
	}
	return ln, lt, "", nil
}

func (s *fileSource) otherGroup(ln Line) error {
	return fmt.Errorf("is of group %s, not %s", ln.Group, s.l.o.Group)
}

func (s *fileSource) lookUp(ctx context.Context, letters []*letter) error {
	return s.look(ctx, letters, s.lookUpLines)
}

// judge is that of the row, unless something stands against the line. What only lacks headers a person can vouch for.
func (s *fileSource) judge(lt *letter) (verdict, Why) {
	v, why := s.byRow.judge(lt)
	if v == act && lt.blockedBy != "" && !(lt.blockedBy == WhyCut && s.o.Force && !lt.line.BodyCut) {
		return leave, lt.blockedBy
	}
	return v, why
}

// lookUpLines finds the rows of letters that come from a file, and what stands against them.
//
// A line that is filed as conflict goes the way of its letter: the row of its key may be gone, or have this body by
// now.
func (s *fileSource) lookUpLines(ctx context.Context, letters []*letter, discardedToo bool) error {
	var conflicts, ordinary []*letter
	for _, lt := range letters {
		if lt.line.Tag == wire.TagConflict {
			lt.blockedBy, lt.replacedBody = "", nil
			if lt.line.BodyCut || lt.line.HeadersCut {
				lt.blockedBy = WhyCut
			}
			conflicts = append(conflicts, lt)
		} else {
			ordinary = append(ordinary, lt)
		}
	}
	if err := s.l.find.lookUp(ctx, conflicts, discardedToo); err != nil {
		return err
	}
	letters = ordinary
	rows, err := s.l.o.Records.LookUp(ctx, keysOf(letters, func(lt *letter) dedup.Identity { return lt.id.Identity }))
	if err != nil {
		return err
	}
	for _, lt := range letters {
		lt.row, lt.replacedBody, lt.blockedBy = rows[lt.id.Identity], nil, ""
		if lt.id.Identity != lt.own.Identity || !differs(lt) {
			if lt.line.BodyCut || lt.line.HeadersCut {
				lt.blockedBy = WhyCut
			}
			continue
		}
		if err := s.mend(ctx, lt); err != nil {
			return err
		}
	}
	return nil
}

// mend prepares a letter whose body is not its row's.
func (s *fileSource) mend(ctx context.Context, lt *letter) error {
	whole, err := s.l.o.Records.Read(ctx, lt.id.Identity)
	if err != nil {
		return err
	}
	if bytes.Equal(whole.Body, lt.Body) || lt.line.HeadersCut {
		lt.blockedBy = WhyCut // the beginning of the body as the log keeps it, not another body
	}
	lt.replacedBody = new(dedup.Entry)
	if sum := sha256.Sum256(whole.Body); bytes.Equal(sum[:], whole.BodyHash) {
		former, _ := wire.Conflict(lt.own, whole.Body)
		*lt.replacedBody = dedup.Entry{
			Identity: former.Identity, BodyHash: sum, MessageID: whole.MessageID, Body: whole.Body, Properties: whole.Properties,
		}
	}
	return nil
}

func (s *fileSource) close(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	if !s.tally.enough() {
		s.tally.missed()
	}
	return s.sweep.run(ctx)
}
