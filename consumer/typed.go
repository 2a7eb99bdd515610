package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/strictjson"
)

// JSON makes a Handler of a function for one message whose body is JSON. It is [Each] but for the body, which is read
// once, before any transaction: encoding/json decodes it into a T, fields that T does not know are let pass. f may be
// called again with the same T, so it must not change what that refers to.
//
// A body that cannot be decoded is dead-lettered at once with reason malformed. So is one of which not every reader
// makes the same: no UTF-8, half a surrogate pair, a field twice in one object, a byte order mark, data behind the
// value; and null. If T or *T has a method Validate() error, it is asked too, and what it refuses is dead-lettered with
// reason permanent, unless the error is marked as [Malformed].
func JSON[T any](f func(ctx context.Context, tx *gorm.DB, body T, m Message) error) Handler {
	return validated{single{func(ctx context.Context, tx *gorm.DB, m Message) error {
		body, err := bodyOf[T](m)
		if err != nil {
			return err
		}
		return f(ctx, tx, body, m)
	}, f}, decoder[T]{}}
}

// JSONBatch is [JSON] for a function that gets a whole batch, as a [Handler] does: bodies[i] is that of msgs[i].
func JSONBatch[T any](f func(ctx context.Context, tx *gorm.DB, bodies []T, msgs []Message) error) Handler {
	return validated{HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []Message) error {
		bodies := make([]T, len(msgs))
		var blamed []BlamedMessage
		for i, m := range msgs {
			var err error
			if bodies[i], err = bodyOf[T](m); err != nil {
				blamed = append(blamed, BlamedMessage{Index: i, Err: err})
			}
		}
		if len(blamed) > 0 {
			return Blame(blamed...)
		}
		return f(ctx, tx, bodies, msgs)
	}), decoder[T]{}}
}

// validated is a Handler with a Validator beside it.
type validated struct {
	Handler
	Validator
}

func (v validated) around(mw Middleware) Handler {
	return validated{around(v.Handler, mw), v.Validator}
}

// decoder leaves a T in Message.Value.
type decoder[T any] struct{}

// Validate is a [Validator]'s.
func (decoder[T]) Validate(m *Message) error {
	body, err := decode[T](m.Body)
	m.Value = body
	return err
}

// bodyOf is what the decoder has left, or would have where another handler stands in between and is no Validator.
func bodyOf[T any](m Message) (T, error) {
	if body, ok := m.Value.(T); ok {
		return body, nil
	}
	return decode[T](m.Body)
}

func decode[T any](text []byte) (body T, err error) {
	err = strictjson.Check(text)
	if err == nil && string(bytes.TrimSpace(text)) == "null" {
		err = errors.New("the body is null")
	}
	if err == nil {
		err = json.Unmarshal(text, &body)
	}
	if err != nil {
		return body, Malformed(err)
	}
	for _, v := range []any{&body, body} { // the second where T is a pointer
		if v, ok := v.(interface{ Validate() error }); ok {
			return body, Permanent(v.Validate())
		}
	}
	return body, nil
}
