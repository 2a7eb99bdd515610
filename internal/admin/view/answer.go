package view

import (
	"errors"
	"net/http"
	"slices"
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

// ErrNothing says that what is asked for is not there.
var ErrNothing = errors.New("nothing is known of it")

// answers are the statuses of errors that are no server's fault.
var answers = []struct {
	status int
	to     []error
}{
	{http.StatusNotFound, []error{ErrNothing, operator.ErrNoAct, ErrNotCompared}},
	{http.StatusForbidden, []error{ErrHidden}},
	{http.StatusUnprocessableEntity, []error{
		operator.ErrRequest, operator.ErrOtherRequest, deadletter.ErrNoFilter, ErrNoOrders,
	}},
	{http.StatusConflict, []error{
		operator.ErrSameSet, operator.ErrEnded, operator.ErrNotIssued, dedup.ErrPaused, dedup.ErrNotPaused,
		operator.ErrRunning,
	}},
	{http.StatusServiceUnavailable, []error{ErrTooLong, ErrEnding}},
}

// AnswerTo says what an error of the view or the operator means.
func AnswerTo(err error) Answer {
	for _, one := range answers {
		if slices.ContainsFunc(one.to, func(to error) bool { return errors.Is(err, to) }) {
			a := Answer{Status: one.status, Text: err.Error()}
			if one.status == http.StatusServiceUnavailable || errors.Is(err, operator.ErrRunning) {
				a.Again = askAgain
			}
			return a
		}
	}
	if operator.Busy(err) {
		return Answer{Status: http.StatusServiceUnavailable, Text: busy, Again: askAgain, Blame: true}
	}
	return Answer{Status: http.StatusBadGateway, Text: err.Error(), Blame: true}
}
