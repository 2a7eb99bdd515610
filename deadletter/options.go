package deadletter

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// ReplayOptions say how to replay.
type ReplayOptions struct {
	// By is the person or process; it stands in the story of each row.
	By string
	// Force also takes letters without a row that are older than the log's retention, and those whose key another body had
	// whose row is gone. Each of them may have had its effect, which then happens again. And it takes parked letters.
	Force bool
	// Discarded also takes letters whose identity a person has discarded.
	Discarded bool
	// DryRun changes nothing and counts what would be.
	DryRun bool

	// Rate is how many letters are replayed per second at most; 0: as many as can be.
	Rate float64
	// Window is how many replayed letters may wait for the daemon at a time, 0 to MaxWindow: the run looks at their rows
	// and goes on when they are done or have failed, and in the end it waits for the last. 0: none is watched, full speed.
	Window int
	// MaxFailures ends the run with ErrTooManyFailures when so many letters of it have failed again, or are dead again. It
	// wants a Window, which bounds how many more may fail meanwhile. 0: they are only counted.
	MaxFailures int

	// Progress, if set, is called after every window of letters and while the run waits, by the goroutine that called
	// Replay.
	Progress func(Progress)
}

// MaxWindow bounds ReplayOptions.Window.
const MaxWindow = 10_000

// DiscardOptions say how to discard.
type DiscardOptions struct {
	By, Why  string // who, and why: both stand in the row
	DryRun   bool
	Progress func(Progress)
}

// Progress is how far a run has come.
type Progress struct {
	Seen, Found int // letters of the set; Found is 0 while a file is read
	Done        int // replayed or discarded
	Waiting     int // replayed and watched, without an outcome
	Failed      int // replayed and watched, failed again
	Applied     int // replayed and watched, their effect committed
	Left        int // chosen, and stay
	// Confirmed: of a [Set], everything that was ever reopened for it is published and confirmed by now.
	Confirmed bool
}

// What ends a replay that is watched.
var (
	ErrTooManyFailures = errors.New("too many of the replayed letters failed again")
	ErrNobodyConsumes  = errors.New("nobody consumes the main queue")
)

const (
	// window is how many letters go through the steps together: half of what a channel holds, so that the next ones come
	// meanwhile.
	window = 500
	// windowTimeout bounds what some letters do after the run was asked to stop: those in hand are finished, not dropped.
	windowTimeout = time.Minute
	// holdTime is how long a run holds letters that it does not take: after 30 minutes, RabbitMQ closes the channel of a
	// delivery without an ack. A run that takes longer gives them back and goes on with what is left of its set.
	holdTime = 10 * time.Minute
)

// Validate says what contradicts itself.
func (o ReplayOptions) Validate() error {
	var errs []error
	if !(o.Rate >= 0) || math.IsInf(o.Rate, 0) {
		errs = append(errs, fmt.Errorf("a rate of %v letters per second", o.Rate))
	}
	if o.Window < 0 || o.Window > MaxWindow {
		errs = append(errs, fmt.Errorf("a window of %d letters: want 0 to %d", o.Window, MaxWindow))
	}
	if o.MaxFailures < 0 || o.MaxFailures > 0 && o.Window == 0 {
		errs = append(errs, fmt.Errorf("at most %d failures, with a window of %d letters", o.MaxFailures, o.Window))
	}
	return errors.Join(errs...)
}
