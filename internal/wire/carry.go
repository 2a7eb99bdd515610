package wire

import (
	"fmt"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Carry makes the message that stands in the main queue for d, which waits in another queue, named from. It is what
// [Copy] makes, but says nothing of its own: no attempt was made, and what a copy or a letter of ours says of itself
// stays with it. It has the identity that d has when d is read as a message of from; whatever broker or shop did with d
// there, a retry through a dead-letter exchange for example, does not give it another one.
//
// A message whose headers nobody can read has no such stand-in: the error says why.
func Carry(d rabbit.Delivery, from string) (rabbit.Message, error) {
	if mark, ok := rabbit.ReadUnreadable(d.Headers); ok {
		return rabbit.Message{}, fmt.Errorf("its headers cannot be read: %s (%d bytes)", mark.Why, mark.Bytes)
	}
	return onItsWay(d, from, func(string) bool { return true }), nil
}
