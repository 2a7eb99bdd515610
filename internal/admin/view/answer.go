package view

import (
	"errors"
	"net/http"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// Answer is what an error means to whoever asked, a person or a program.
type Answer struct {
	Status int // of HTTP
	Text   string
	// Again is after how long it is worth asking again; 0: nobody knows.
	Again time.Duration
	// Blame is true where a server is to blame: the daemon's log should have the error as it was.
	Blame bool
}

// askAgain is after how long what was in the way may be gone.
const askAgain = time.Second

// busy is said in place of the error that MySQL gives when it let somebody wait too long.
const busy = "MySQL let this wait in vain for somebody else's lock, as while a table is changed: " +
	"try again in a moment"

// AnswerTo says what an error of the view or the operator means.
func AnswerTo(err error) Answer {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	switch {
	case is(operator.ErrNoAct, ErrNotCompared):
		return Answer{Status: http.StatusNotFound, Text: err.Error()}
	case is(ErrHidden):
		return Answer{Status: http.StatusForbidden, Text: err.Error()}
	case is(operator.ErrRequest, operator.ErrOtherRequest, deadletter.ErrNoFilter, ErrNoOrders):
		return Answer{Status: http.StatusUnprocessableEntity, Text: err.Error()}
	case is(operator.ErrSameSet, operator.ErrEnded, operator.ErrNotIssued, dedup.ErrPaused, dedup.ErrNotPaused):
		return Answer{Status: http.StatusConflict, Text: err.Error()}
	case is(operator.ErrRunning):
		return Answer{Status: http.StatusConflict, Text: err.Error(), Again: askAgain}
	case is(ErrTooLong, ErrEnding):
		return Answer{Status: http.StatusServiceUnavailable, Text: err.Error(), Again: askAgain}
	case operator.Busy(err):
		return Answer{Status: http.StatusServiceUnavailable, Text: busy, Again: askAgain, Blame: true}
	}
	return Answer{Status: http.StatusBadGateway, Text: err.Error(), Blame: true}
}
