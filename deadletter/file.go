package deadletter

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// ReplayFrom replays letters from the lines of an export, those that f chooses: their rows are reopened and their messages
// published as Replay does, never one without the other, whether or not the dead-letter queue still has them. It is for
// letters whose body a person has mended, and for a queue that was lost.
//
// A line's message must still have the line's identity: else its row would not be the one it is processed by. With a mended
// body the row takes the new body and its hash, and the event records both hashes. In the same transaction the identity
// under which a copy with the former body is filed (its key taken by another body) ends as discarded. So the letter with
// the former body, which is still in the dead-letter queue, is stale from the commit on, whoever meets it and wherever the
// process is killed: a replay drops it, and the daemon acks it when it is moved by hand. Nothing is lost by that: until the
// commit the row is dead and the letter good; after it the row has the new body, and if its message was not published, the
// row says failed with all of it, so that the same file can be replayed again.
//
// In the end it drops the letters of the replayed messages from the dead-letter queue; a run that is interrupted leaves that
// to the next replay.
func (l *Letters) ReplayFrom(ctx context.Context, name string, lines io.Reader, f Filter, o ReplayOptions) (Result, error) {
	r := l.newRun(f, o)
	r.from, r.sent, r.owners = name, map[dedup.Key]int{}, map[dedup.Key]bool{}
	for _, key := range f.Keys {
		r.missing[key] = true
	}
	err := r.do(ctx, func(ctx context.Context) error { return r.throughFile(ctx, lines) })
	if err != nil {
		return r.result, fmt.Errorf("replay dead letters from %s: %w", name, err)
	}
	return r.result, nil
}

// throughFile takes the lines window by window, then drops the letters that are done with from the queue.
func (r *run) throughFile(ctx context.Context, file io.Reader) error {
	depth, _, err := r.queue.conn.Depth(ctx, r.queue.name)
	if err != nil {
		return brokerError(err)
	}
	lines := bufio.NewReaderSize(file, maxLine)
	for number, ended := 0, false; !ended && !r.enough(); {
		var letters []*letter
		for len(letters) < window && !ended {
			number++
			text, err := lines.ReadSlice('\n')
			if ended = errors.Is(err, io.EOF); err != nil && !ended && !errors.Is(err, bufio.ErrBufferFull) {
				return fmt.Errorf("read line %d: %w", number, err)
			}
			for whole := err; errors.Is(whole, bufio.ErrBufferFull); {
				_, whole = lines.ReadSlice('\n')
				ended = errors.Is(whole, io.EOF)
			}
			if lt := r.readLine(number, text, err); lt != nil {
				letters = append(letters, lt)
			}
		}
		r.result.Found = r.result.Seen
		if err := r.window(ctx, letters, r.l.lookUpLines); err != nil {
			return err
		}
		r.tell()
	}
	if !r.enough() {
		r.result.NotFound = slices.Sorted(maps.Keys(r.missing))
		r.result.NotFound = append([]string{}, r.result.NotFound...)
	}
	return r.sweep(ctx, depth)
}

// readLine makes a letter of a line; nil when it is empty or bad, which is noted.
func (r *run) readLine(number int, text []byte, readErr error) *letter {
	if text = bytes.TrimSpace(text); len(text) == 0 {
		return nil
	}
	r.result.Seen++
	bad := func(why Why, ln Line, err error) *letter {
		r.result.Left = append(r.result.Left, Left{Tag: ln.Tag, Key: ln.Key, Reason: ln.Reason, Why: why, Error: fmt.Sprintf("line %d %v", number, err)})
		return nil
	}
	if errors.Is(readErr, bufio.ErrBufferFull) {
		return bad(WhyBadLine, Line{}, fmt.Errorf("is longer than %d bytes", maxLine))
	}
	ln, err := ParseLine(text)
	if err != nil {
		return bad(WhyBadLine, ln, err)
	}
	d, err := ln.Message()
	if err != nil {
		return bad(WhyBadLine, ln, fmt.Errorf("cannot be made a message: %w", err))
	}
	lt := r.l.read(taken{Delivery: d})
	lt.line = &ln
	want := dedup.Key{Group: r.l.o.Group, Tag: ln.Tag, Name: ln.Key}
	conflict, _ := wire.Conflict(lt.own, d.Body)
	switch {
	case ln.Group != "" && ln.Group != r.l.o.Group:
		return bad(WhyOtherIdentity, ln, fmt.Errorf("is of group %s, not %s", ln.Group, r.l.o.Group))
	case lt.own.Key == want:
	case !lt.filed && conflict.Key == want:
		lt.id = conflict
	default:
		return bad(WhyOtherIdentity, ln, fmt.Errorf("has the message of %v", lt.own.Key))
	}
	return lt
}

// lookUpLines finds the rows of letters that come from a file, and what stands against them.
//
// A line that is filed as conflict goes the way of its letter: the row of its key may be gone, or have this body by now.
func (l *Letters) lookUpLines(ctx context.Context, letters []*letter, discardedToo bool) error {
	var conflicts, ordinary []*letter
	for _, lt := range letters {
		if lt.line.Tag == wire.TagConflict {
			lt.bar, lt.former = "", nil
			if lt.line.BodyCut || lt.line.HeadersCut {
				lt.bar = WhyCut
			}
			conflicts = append(conflicts, lt)
		} else {
			ordinary = append(ordinary, lt)
		}
	}
	if err := l.lookUp(ctx, conflicts, discardedToo); err != nil {
		return err
	}
	letters = ordinary
	rows, err := l.o.Records.LookUp(ctx, keysOf(letters, func(lt *letter) []dedup.Key { return []dedup.Key{lt.id.Key} }))
	if err != nil {
		return err
	}
	for _, lt := range letters {
		lt.row, lt.former, lt.bar = rows[lt.id.Key], nil, ""
		if lt.id.Key != lt.own.Key || !differs(lt) {
			if lt.line.BodyCut || lt.line.HeadersCut {
				lt.bar = WhyCut
			}
			continue
		}
		if err := l.mend(ctx, lt); err != nil {
			return err
		}
	}
	return nil
}

// mend prepares a letter whose body is not its row's.
func (l *Letters) mend(ctx context.Context, lt *letter) error {
	whole, err := l.o.Records.Read(ctx, lt.id.Key)
	if err != nil {
		return err
	}
	if bytes.Equal(whole.Body, lt.Body) || lt.line.HeadersCut {
		lt.bar = WhyCut // the beginning of the body as the log keeps it, not another body
	}
	lt.former = new(dedup.Entry)
	if sum := sha256.Sum256(whole.Body); bytes.Equal(sum[:], whole.BodyHash) {
		former, _ := wire.Conflict(lt.own, whole.Body)
		*lt.former = dedup.Entry{Key: former.Key, BodyHash: sum, MessageID: whole.MessageID, Body: whole.Body, Properties: whole.Properties}
	}
	return nil
}

// sweep drops from the queue the letters of messages that this run has published, as far as they were there before.
func (r *run) sweep(ctx context.Context, depth int) (err error) {
	if r.o.DryRun || len(r.sent) == 0 {
		return nil
	}
	defer func() { r.queue.leave(context.WithoutCancel(ctx), depth-r.queue.acked()) }()
	for seen := 0; seen < depth; {
		taken, err := r.queue.next(ctx, min(window, depth-seen))
		if err != nil || len(taken) == 0 {
			return brokerError(err)
		}
		seen += len(taken)
		var letters []*letter
		for _, t := range taken {
			if lt := r.l.read(t); r.owners[lt.own.Key] {
				letters = append(letters, lt)
			}
		}
		if err := r.dropSent(ctx, letters); err != nil {
			return err
		}
		r.tell()
	}
	return nil
}

func (r *run) dropSent(ctx context.Context, letters []*letter) error {
	if len(letters) == 0 {
		return nil
	}
	ctx, cancel := r.finishing(ctx)
	defer cancel()
	if err := r.l.lookUp(ctx, letters, false); err != nil {
		return err
	}
	for _, lt := range letters {
		if !isDoneWith(lt.row, lt.info.Replays, r.sent[lt.id.Key]) {
			continue
		}
		if _, err := r.ackLetter(lt); err != nil {
			return err
		}
		r.result.Duplicates++
	}
	return r.l.at(PointAcked)
}

// isDoneWith reports whether a letter that was made when its row had so many replays may go, now that a run has published its
// message with more. One that the daemon has made since has as many: it is the message's only copy, also for the moment
// in which its row does not say dead yet.
func isDoneWith(row dedup.Row, replays, sent int) bool {
	switch row.Status {
	case dedup.Success, dedup.Discarded:
		return true
	case dedup.Failed, dedup.Processing:
		return sent > 0 && row.Replays == sent && replays < sent
	}
	return false
}
