package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/desk"
)

// trouble is the answer that an error is. Those of servers are noted in the daemon's log too.
func (a *API) trouble(ctx context.Context, what string, err error) error {
	if known, ok := errors.AsType[huma.StatusError](err); ok {
		return known
	}
	if inTheWay := a.conflict(err); inTheWay != nil {
		return inTheWay
	}
	status := http.StatusBadGateway
	switch {
	case errors.Is(err, errNothing), errors.Is(err, desk.ErrNoAct):
		status = http.StatusNotFound
	case errors.Is(err, dedup.ErrCursor):
		return wrong("query.after", "it is not what the page before said as next, with the same filter")
	case errors.Is(err, desk.ErrRequest), errors.Is(err, view.ErrManyMessages), errors.Is(err, view.ErrNoOrders):
		status = http.StatusUnprocessableEntity
	case errors.Is(err, view.ErrTooLong), errors.Is(err, view.ErrEnding):
		status = http.StatusServiceUnavailable
	default:
		a.o.Logger.WarnContext(ctx, "a request to the API could not be answered", "what", what, "err", err)
	}
	return problem(status, err.Error())
}

func problem(status int, detail string) *huma.ErrorModel {
	return &huma.ErrorModel{Title: http.StatusText(status), Status: status, Detail: detail}
}

// wrong says what is wrong with a part of a request.
func wrong(where, why string) error {
	return &huma.ErrorModel{
		Title: http.StatusText(http.StatusUnprocessableEntity), Status: http.StatusUnprocessableEntity,
		Detail: invalid, Errors: []*huma.ErrorDetail{{Location: where, Message: why}},
	}
}

// invalid is what the library says of every request that is not as the description has it.
const invalid = "validation failed"

// mostNamed is how many of a request's mistakes an answer names.
const mostNamed = 10

// inSentences says in the detail what is wrong, so that who shows nothing else shows enough. It repeats nothing of what
// was sent.
func inSentences(_ huma.Context, _ string, v any) (any, error) {
	e, ok := v.(*huma.ErrorModel)
	if !ok || len(e.Errors) == 0 {
		return v, nil
	}
	said := *e
	said.Errors = nil
	var words []string
	for i, one := range e.Errors {
		if i == mostNamed {
			words = append(words, fmt.Sprintf("and %d more", len(e.Errors)-i))
			break
		}
		at := one.Location
		said.Errors = append(said.Errors, &huma.ErrorDetail{Location: at, Message: one.Message})
		if at != "" {
			at += ": "
		}
		words = append(words, at+one.Message)
	}
	if said.Detail == invalid {
		said.Detail = "The request is not as it must be: " + strings.Join(words, "; ") + "."
	}
	return &said, nil
}
