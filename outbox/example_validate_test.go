package outbox_test

import (
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/outbox"
)

// nameless has no key.
var nameless = outbox.Message{Tag: "booking.cancelled", Body: []byte("{}")}

// Put would refuse it, and whoever consumes it could not tell two of them apart.
func ExampleMessage_Validate() {
	fmt.Println(errors.Is(nameless.Validate(), outbox.ErrInvalid))
	// Output: true
}
