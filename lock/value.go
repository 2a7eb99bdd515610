package lock

import (
	"crypto/sha256"
	"strings"
	"time"
)

// The two forms of a value. They never meet: whatever the token, a lock's value does not begin like a marker's.
const (
	lockedPrefix = "lock:" // then the token
	donePrefix   = "done:" // then the 32 bytes of the body's hash
)

// ReadHeld judges the value that stands under a name, for who tries it with a value of his own, by its form, which must
// be exact. Who waited for anything else to go away could wait for ever.
func ReadHeld(value, mine string) Held {
	if value == mine {
		return Held{Hold: Mine}
	}
	if hash, ok := readMarker(value); ok {
		return Held{Hold: DoneMarker, BodyHash: hash}
	}
	if holder, ok := readToken(value); ok {
		return Held{Hold: HeldByOther, Holder: holder}
	}
	return Held{Hold: Foreign}
}

// ReadState says what a value means that stands under a name for a time.
func ReadState(value string, ttl time.Duration) State {
	s := State{Hold: Foreign, TTL: ttl}
	if hash, ok := readMarker(value); ok {
		s.Hold, s.Hash = DoneMarker, hash[:]
	} else if token, ok := readToken(value); ok {
		s.Hold, s.Token = HeldByOther, token
	}
	return s
}

func readMarker(value string) (hash [sha256.Size]byte, ok bool) {
	if len(value) != len(donePrefix)+sha256.Size || value[:len(donePrefix)] != donePrefix {
		return hash, false
	}
	copy(hash[:], value[len(donePrefix):])
	return hash, true
}

func readToken(value string) (token string, ok bool) {
	token, ok = strings.CutPrefix(value, lockedPrefix)
	return token, ok && token != ""
}
