package rabbit

import "fmt"

// outstanding knows which delivery tags of a channel wait to be settled. The broker closes a channel, with all its unacked
// messages, when a tag is settled twice or was never delivered, and the client reports nothing; so it is refused here first.
// Tags of a channel count up from 1 without gaps.
type outstanding struct {
	floor uint64              // every tag below is settled
	last  uint64              // the highest tag delivered
	done  map[uint64]struct{} // settled tags at or above floor, out of order
}

// delivered notes all tags up to last.
func (o *outstanding) delivered(last uint64) { o.last = max(o.last, last) }

func (o *outstanding) settle(tag uint64, multiple bool) error {
	_, done := o.done[tag]
	if tag < o.floor || tag > o.last || done {
		return fmt.Errorf("%w: %d", ErrNotOutstanding, tag)
	}
	switch {
	case multiple:
		for t := range o.done {
			if t <= tag {
				delete(o.done, t)
			}
		}
		o.floor = tag + 1
	case tag == o.floor:
		o.floor++
	default:
		if o.done == nil {
			o.done = make(map[uint64]struct{})
		}
		o.done[tag] = struct{}{}
	}
	for len(o.done) > 0 {
		if _, ok := o.done[o.floor]; !ok {
			break
		}
		delete(o.done, o.floor)
		o.floor++
	}
	return nil
}
