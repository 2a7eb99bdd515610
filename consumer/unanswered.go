package consumer

import (
	"errors"

	"github.com/rollbackd/rollbackd/dedup"
)

// unanswered remembers, over the repetitions of one step, that the answer to a COMMIT was lost: that may be committed
// all the same, or be committed later. Whoever then finds a row moved must ask whether it was moved by this step.
type unanswered struct{ lost bool }

// note takes in the error of one try.
func (u *unanswered) note(err error) {
	if errors.Is(err, dedup.ErrUnknown) {
		u.lost = true
	}
}
