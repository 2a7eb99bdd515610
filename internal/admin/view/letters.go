package view

import (
	"context"
	"errors"
)

// ErrNoOrders says that orders are not known here.
var ErrNoOrders = errors.New("orders are known to ROLLBACKD_HANDLER=stock only")

// ErrHidden says that a text of bodies must not be looked for.
var ErrHidden = errors.New("bodies are hidden here: to look for a text of theirs would tell bit by bit what they hold")

// Shows is nil, or ErrHidden when letters are chosen by a text of the body and bodies are hidden.
func (v *View) Shows(body string) error {
	if body != "" && v.o.Hide.Any() {
		return ErrHidden
	}
	return nil
}

// KnowsOrders reports whether messages can be found by their order.
func (v *View) KnowsOrders() bool { return v.o.Story.OrderOf != nil }

// GroupsNow are the groups as last looked at. Where nobody has looked yet, it waits for the first look, for as long as
// a page may wait.
func (v *View) GroupsNow(ctx context.Context) (Aged[Groups], error) {
	return Within(ctx, pageTime, func(ctx context.Context) (Aged[Groups], error) {
		return v.survey.await(ctx, surveyKeep)
	})
}

// ErrEnding says that this daemon is about to end and finds nothing out any more.
var ErrEnding = errors.New("this daemon is ending: ask another one")
