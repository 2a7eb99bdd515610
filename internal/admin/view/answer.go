package view

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/outbox"
)

// Answer is what an error means to whoever asked, a person or a program. It is an error too, that means itself.
type Answer struct {
	Status int // of HTTP
	Text   string
	// Again is after how long it is worth asking again; 0: nobody knows.
	Again time.Duration
	// Blame is true where a server is to blame: the daemon's log should have the error as it was.
	Blame bool
}

func (a Answer) Error() string { return a.Text }

// askAgain is after how long what was in the way may be gone.
const askAgain = time.Second

// What a view cannot or must not tell.
var (
	ErrNothing  = errors.New("nothing is known of it")
	ErrNoOrders = errors.New("orders are known to ROLLBACKD_HANDLER=stock only")
	ErrHidden   = errors.New("bodies are hidden here: to look for a text of theirs would tell bit by bit what they hold")
	errNotSeen  = errors.New("bodies are hidden here, and what cannot be seen is not edited: `dlq edit` does it")
	ErrEnding   = errors.New("this daemon is ending: ask another one")
	// ErrTooLong says that the answer took longer than somebody waits; of a search it says too what would shorten it.
	ErrTooLong = errors.New("the database took too long: try again in a moment")
	errTooWide = fmt.Errorf("%w, or narrow the search by key, tag, reason or time", ErrTooLong)
)

// answers are the statuses of errors that are no server's fault.
var answers = []struct {
	status int
	to     []error
}{
	{http.StatusNotFound, []error{ErrNothing, operator.ErrNoAct, ErrNotCompared, operator.ErrNoFinding,
		outbox.ErrNoTable}},
	{http.StatusForbidden, []error{ErrHidden, errNotSeen}},
	{http.StatusUnprocessableEntity, []error{
		operator.ErrRequest, operator.ErrOtherRequest, deadletter.ErrNoEdit, deadletter.ErrNoFilter, ErrNoOrders,
		operator.ErrNoRepair,
	}},
	{http.StatusConflict, []error{
		operator.ErrSameSet, operator.ErrEnded, operator.ErrNotIssued, dedup.ErrPaused, dedup.ErrNotPaused,
		operator.ErrRunning,
	}},
	{http.StatusServiceUnavailable, []error{ErrTooLong, ErrEnding}},
}

// AnswerTo says what an error of the view or the operator means.
func AnswerTo(err error) Answer {
	if a, ok := errors.AsType[Answer](err); ok {
		return a
	}
	for _, one := range answers {
		if slices.ContainsFunc(one.to, func(to error) bool { return errors.Is(err, to) }) {
			a := Answer{Status: one.status, Text: err.Error()}
			if one.status == http.StatusServiceUnavailable || errors.Is(err, operator.ErrRunning) {
				a.Again = askAgain
			}
			return a
		}
	}
	switch {
	case errors.Is(err, dedup.ErrCursor), errors.Is(err, outbox.ErrCursor):
		return Answer{Status: http.StatusBadRequest,
			Text: "This address does not say where the next page begins: begin at the first one."}
	case operator.Forbidden(err):
		return Answer{Status: http.StatusBadGateway, Blame: true, Text: "The account of this process may not do that: " +
			err.Error() + "; docs/rights.md says what pages need"}
	case operator.Busy(err):
		return Answer{Status: http.StatusServiceUnavailable, Again: askAgain, Blame: true, Text: "MySQL let this wait in " +
			"vain for somebody else's lock, as while a table is changed: try again in a moment"}
	}
	return Answer{Status: http.StatusBadGateway, Text: err.Error(), Blame: true}
}
