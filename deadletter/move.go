package deadletter

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/rollbackd/rollbackd/dedup"
)

// mover brings letters from a source to an end, some at a time. The file has the steps in the order in which a letter
// meets them.
type mover struct {
	*run
	source source
	end    end
	pace   *pace
}

// move brings the letters of a run from a source to an end.
func move(ctx context.Context, r *run, from source, to end, w *watch) error {
	m := &mover{run: r, source: from, end: to, pace: &pace{run: r, watch: w}}
	return m.move(ctx)
}

// move moves what the source has, lets go of what was not taken, and waits for what becomes of what was replayed.
func (m *mover) move(ctx context.Context) error {
	err := m.through(ctx)
	if err = m.source.close(ctx, err); err != nil {
		return err
	}
	return m.pace.watch.settle(ctx)
}

// through goes through the source, window by window.
func (m *mover) through(ctx context.Context) error {
	for {
		letters, err := m.source.next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = m.window(ctx, letters)
		}
		if err != nil {
			return err
		}
		m.tally.report()
	}
}

// window is the life of some letters: judge them by their rows, and bring to the end those that are to go, as many at a
// time as the pace allows. Some must wait until others have their rows, and are judged again.
func (m *mover) window(ctx context.Context, letters []*letter) error {
	letters = m.mayMatch(letters)
	for len(letters) > 0 {
		leaders, waiting, err := m.judge(ctx, letters)
		for err == nil && len(leaders) > 0 {
			var n int
			if n, err = m.pace.turn(ctx, len(leaders)); err == nil {
				err = m.act(ctx, leaders[:n])
				leaders = leaders[n:]
			}
		}
		if err != nil {
			m.tally.unsee(leaders, waiting)
			return err
		}
		letters = waiting
	}
	return nil
}

// mayMatch leaves out the letters that the filter cannot choose, before the database is asked about them.
func (m *mover) mayMatch(letters []*letter) []*letter {
	return slices.DeleteFunc(letters, func(lt *letter) bool {
		no := !lt.mayMatch(m.filter)
		if no {
			m.tally.NotSelected++
		}
		return no
	})
}

// judge finds out what becomes of letters: it drops the stale ones, notes those that stay and returns those to act on,
// and those that must wait for them.
func (m *mover) judge(ctx context.Context, letters []*letter) (leaders, waiting []*letter, err error) {
	ctx, cancel := m.finishing(ctx)
	defer cancel()
	if err := m.source.lookUp(ctx, letters); err != nil {
		return nil, letters, err
	}
	s := m.sort(letters)
	return s.leaders, s.waiting, errors.Join(m.drop(ctx, s.stale), m.park(ctx, s.parked))
}

// act brings letters, each of another identity, to the end.
func (m *mover) act(ctx context.Context, letters []*letter) error {
	ctx, cancel := m.finishing(ctx)
	defer cancel()
	return m.end.act(ctx, letters)
}

// sorted are letters by what becomes of them.
type sorted struct {
	leaders []*letter   // to act on, each of another identity
	waiting []*letter   // to be judged again after them
	stale   []*letter   // to be dropped
	parked  []dedup.Row // of those that are not to be replayed again
}

// sort judges each letter. Of several letters of one message the first leads and the others follow it: what is
// committed and confirmed for the first holds for them too, because they were in the queue before. Another body under
// the same key waits until the first has its row, as bodies are compared only with a committed one.
func (m *mover) sort(letters []*letter) (s sorted) {
	led := map[dedup.Identity]*letter{}
	for _, lt := range letters {
		leader := led[lt.id.Identity]
		if !lt.matches(m.filter) || leader == nil && m.tally.reached(len(s.leaders)) {
			m.tally.NotSelected++
			continue
		}
		m.tally.find(lt)
		v, why := m.source.judge(lt)
		switch {
		case v == drop:
			s.stale = append(s.stale, lt)
		case v == later:
			m.tally.Later++
		case v == leave:
			m.tally.leave(lt, why, lt.err)
			if why == WhyParked {
				s.parked = append(s.parked, lt.row)
			}
		case leader == nil:
			led[lt.id.Identity] = lt
			s.leaders = append(s.leaders, lt)
		case leader.id.BodyHash == lt.id.BodyHash:
			leader.followers = append(leader.followers, lt)
		default:
			s.waiting = append(s.waiting, lt)
		}
	}
	return s
}
