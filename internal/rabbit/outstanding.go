package rabbit

import (
	"cmp"
	"fmt"
	"slices"
)

// outstanding knows which delivery tags of a channel wait to be settled. The broker closes a channel, with all its
// unacked messages, when a tag is settled twice or was never delivered, and the client reports nothing; so it is
// refused here first. Tags of a channel count up from 1 without gaps. It is as large as what is open is scattered: one
// delivery may stay unsettled while millions after it are settled.
type outstanding struct {
	last uint64 // the highest tag delivered
	open []span // unsettled tags, in order
}

// span is the tags from first to last.
type span struct{ first, last uint64 }

// delivered notes all tags up to last.
func (o *outstanding) delivered(last uint64) {
	switch n := len(o.open); {
	case last <= o.last:
		return
	case n > 0 && o.open[n-1].last == o.last:
		o.open[n-1].last = last
	default:
		o.open = append(o.open, span{o.last + 1, last})
	}
	o.last = last
}

// settle takes out a tag, with multiple every one before it as well, and says how many these were.
func (o *outstanding) settle(tag uint64, multiple bool) (n uint64, err error) {
	i, _ := slices.BinarySearchFunc(o.open, tag, func(s span, tag uint64) int { return cmp.Compare(s.last, tag) })
	if i == len(o.open) || tag < o.open[i].first {
		return 0, fmt.Errorf("%w: %d", ErrNotOutstanding, tag)
	}
	s := o.open[i]
	var rest []span
	if !multiple && s.first < tag {
		rest = append(rest, span{s.first, tag - 1})
	}
	if tag < s.last {
		rest = append(rest, span{tag + 1, s.last})
	}
	from, n := i, uint64(1)
	if multiple {
		from, n = 0, tag-s.first+1
		for _, before := range o.open[:i] {
			n += before.last - before.first + 1
		}
	}
	o.open = slices.Replace(o.open, from, i+1, rest...)
	return n, nil
}

// leading is how many of tags, which ascend, are the first that are unsettled, without a gap between them.
func (o *outstanding) leading(tags []uint64) (n int) {
	for _, s := range o.open {
		for tag := s.first; tag <= s.last; tag++ {
			if n == len(tags) || tags[n] != tag {
				return n
			}
			n++
		}
	}
	return n
}
