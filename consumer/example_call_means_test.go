package consumer_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
)

// errCall is what went wrong with a call to a service.
var errCall = errors.New("503 Service Unavailable")

// What a function of Calls may say of an error: the service is away, the answer is lost, a setting is wrong, it is too
// early. All else is the message's own failure.
func ExampleCallMeans() {
	for _, err := range []error{
		consumer.Unavailable(errCall), consumer.Unanswered(errCall), consumer.Misconfigured(errCall),
		consumer.Later(errCall, time.Minute), errCall,
	} {
		fmt.Println(consumer.CallMeans(err))
	}
	// Output:
	// unavailable 0s
	// unanswered 0s
	// misconfigured 0s
	// later 1m0s
	// failed 0s
}
