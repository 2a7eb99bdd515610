package view

import (
	"context"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/story"
)

// Errors of what is asked for.
var (
	// ErrNoOrders says that orders are not known here.
	ErrNoOrders = errors.New("orders are known to ROLLBACKD_HANDLER=stock only")
	// ErrManyMessages says that an order has more messages than one list is made for.
	ErrManyMessages = fmt.Errorf("the order has over %d messages: name keys", dedup.MaxListedKeys)
)

// KnowsOrders reports whether messages can be found by their order.
func (v *View) KnowsOrders() bool { return v.o.Story.DB != nil }

// LettersOf is a page of dead letters, the latest first, of an order if one is named. By reason, error or fingerprint a
// page may have less than its limit, or nothing, and still not be the last.
func (v *View) LettersOf(
	ctx context.Context, order string, f deadletter.Filter, after dedup.Cursor,
) (p Page[deadletter.Letter], err error) {
	if order != "" { // its messages are found by their bodies too, and none may be missing
		f.Keys, err = Search(ctx, wholeTime, func(ctx context.Context) ([]string, error) {
			return v.keysOf(ctx, order, f.Keys)
		})
		if err != nil || len(f.Keys) == 0 {
			return p, err
		}
	}
	return v.Letters(ctx, f, after, false)
}

// keysOf are the keys of an order's messages, those among others only if there are others.
func (v *View) keysOf(ctx context.Context, order string, among []string) ([]string, error) {
	if !v.KnowsOrders() {
		return nil, ErrNoOrders
	}
	keys, err := story.KeysOf(ctx, v.o.Story, order, among)
	if err == nil && len(keys) > dedup.MaxListedKeys {
		err = ErrManyMessages
	}
	return keys, err
}

// GroupsNow are the groups as last looked at. Where nobody has looked yet, it waits for the first look, for as long as
// a page may wait.
func (v *View) GroupsNow(ctx context.Context) (Aged[Groups], error) {
	return Within(ctx, pageTime, func(ctx context.Context) (Aged[Groups], error) {
		return v.survey.await(ctx, surveyKeep)
	})
}

// ErrEnding says that this daemon is about to end and finds nothing out any more.
var ErrEnding = errors.New("this daemon is ending: ask another one")
