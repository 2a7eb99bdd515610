package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// trouble is the answer that an error is. Those of servers are noted in the daemon's log too.
func (a *API) trouble(ctx context.Context, what string, err error) error {
	if known, ok := errors.AsType[huma.StatusError](err); ok {
		return known
	}
	if errors.Is(err, dedup.ErrCursor) {
		return wrong("query.after", "it is not what the page before said as next, with the same filter")
	}
	known := view.AnswerTo(err)
	if errors.Is(err, operator.ErrNotIssued) { // its row was cleaned between two looks at it
		known.Text = "the key was used a day ago and is just being forgotten: send the request again"
	}
	if known.Blame {
		a.view.Options().Logger.WarnContext(ctx, "a request to the API could not be answered", "what", what, "err", err)
	}
	p := problem(known.Status, known.Text)
	if id := inTheWay(err); id != "" {
		p.Instance = a.actAt(id)
	}
	if known.Again > 0 {
		again := strconv.Itoa(int(known.Again.Seconds()))
		return huma.ErrorWithHeaders(p, http.Header{"Retry-After": {again}})
	}
	return p
}

// inTheWay is the id of the act that an error names; "" when it names none.
func inTheWay(err error) string {
	if same, ok := errors.AsType[*operator.SameSetError](err); ok {
		return same.Act.ID
	}
	if paused, ok := errors.AsType[*operator.PausedError](err); ok {
		return paused.Pause.ID
	}
	return ""
}

func problem(status int, detail string, parts ...*huma.ErrorDetail) *huma.ErrorModel {
	return &huma.ErrorModel{Title: http.StatusText(status), Status: status, Detail: detail, Errors: parts}
}

// wrong says what is wrong with a part of a request.
func wrong(where, why string) error {
	return problem(http.StatusUnprocessableEntity, invalid, &huma.ErrorDetail{Location: where, Message: why})
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
