package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"gorm.io/gorm"
)

// OtherTags is the key in a [Mux] of the handler for all tags that are no key of it. No message has it as its tag.
const OtherTags = ""

// Mux is a Handler that hands each message to the handler of its tag. Those of a batch share one transaction: each
// handler is called once with all that are its own, and speaks of them alone. A tag without a handler, where there is
// none for [OtherTags], is a failed attempt of its message, which names the tags that are known: so a tag that was
// forgotten in a deployment is tried again, and the brake sees it. The handlers may be Validators; none is made by
// [Calls].
type Mux map[string]Handler

// keyOf is the key of the handler for a tag, if there is one.
func (x Mux) keyOf(tag string) string {
	if x[tag] != nil {
		return tag
	}
	return OtherTags
}

// Handle is a [Handler]'s. When a handler blames some, what all have written is undone, and those that come behind are
// not called before the next time.
func (x Mux) Handle(ctx context.Context, tx *gorm.DB, msgs []Message) error {
	var blamed []BlamedMessage
	var keys []string
	places := map[string][]int{} // in msgs, by key
	for i, m := range msgs {
		key := x.keyOf(m.Tag)
		if x[key] == nil {
			err := fmt.Errorf("no handler for the tag %q, only for %q", m.Tag, slices.Sorted(maps.Keys(x)))
			blamed = append(blamed, BlamedMessage{Index: i, Err: err})
			continue
		}
		if places[key] == nil {
			keys = append(keys, key)
		}
		places[key] = append(places[key], i)
	}
	for _, key := range keys {
		at, part, given := places[key], msgs, msgs // all, as they are, so that the engine knows where the handler is at
		if len(at) < len(msgs) {
			part = make([]Message, len(at))
			for j, i := range at {
				part[j] = msgs[i]
			}
			given = slices.Clone(part)
		}
		err := inPlace(x[key].Handle(ctx, tx, given), given, part)
		err = ofEach(ofCall(ctx, tx, nil, nil, err), len(part))
		by := blameOf(err, len(part))
		if err != nil && by == nil {
			return err
		}
		for j, i := range at {
			if by[j] != nil {
				blamed = append(blamed, BlamedMessage{Index: i, Err: by[j]})
			}
		}
		if err != nil && !appliedOthers(err) {
			return Blame(blamed...)
		}
	}
	return Except(blamed...)
}

// Validate is a [Validator]'s: it asks the handler of the message's tag.
func (x Mux) Validate(m *Message) error {
	if v, ok := x[x.keyOf(m.Tag)].(Validator); ok {
		return v.Validate(m)
	}
	return nil
}

// around has middleware see what each handler is called with.
func (x Mux) around(mw Middleware) Handler {
	all := make(Mux, len(x))
	for tag, h := range x {
		all[tag] = h
		if h != nil {
			all[tag] = around(h, mw)
		}
	}
	return all
}

func (x Mux) check(cfg Config) (err error) {
	if len(x) == 0 {
		err = errors.New("a Mux without handlers")
	}
	for _, tag := range slices.Sorted(maps.Keys(x)) {
		var wrong error
		switch h := x[tag].(type) {
		case nil:
			wrong = errors.New("no Handler")
		case *callHandler:
			wrong = errors.New("a handler made by Calls has no place in a transaction with others")
		case checked:
			wrong = h.check(cfg)
		}
		if wrong != nil {
			err = errors.Join(err, fmt.Errorf("Mux, tag %q: %w", tag, wrong))
		}
	}
	return err
}
