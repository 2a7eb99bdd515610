package consumer_test

import (
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/consumer"
)

// errNoNumber is what a handler finds in a body.
var errNoNumber = errors.New("the seat has no number")

// Marked so, the message is a letter at once, for the reason malformed. The text of the error stays.
func ExampleMalformed() {
	err := consumer.Malformed(errNoNumber)
	fmt.Println(err, consumer.IsPermanent(err), errors.Is(err, errNoNumber))
	// Output: the seat has no number true true
}
