package dedup

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
)

// Locker keeps two workers off one identity. It only saves work: everything holds without it, with NoLock, and with a
// Redis that is flushed, restarted, frozen or absent. What must not happen twice is kept from happening by the consumer log.
//
// All methods may be called by many goroutines, keep none of the slices they are given, and wait no longer than the
// implementation's timeout for one call.
type Locker interface {
	// LockKey prepares the identity for the other methods, so that it is hashed once per message.
	LockKey(k Key) LockKey

	// Lock tries all keys in one round trip and says of each, in order, what it found. It never waits for a holder.
	// The token names the holder and must be unlike that of every other batch that may be in hand anywhere; a key that
	// already holds this token is Mine again, so a call may be repeated with the same token after an error.
	//
	// An error means that nothing is known of any key: ErrLockUnavailable when Redis is away and the policy is to
	// pause (repeat the call later), or the end of ctx. Every key found Mine must be given to Release or Done.
	Lock(ctx context.Context, token string, keys []LockKey) ([]Held, error)

	// Release gives back the keys that still hold the token and leaves every other one alone. An error may be
	// ignored: a lock that is not released expires by itself.
	Release(ctx context.Context, token string, keys []LockKey) error

	// Done writes done markers over whatever the keys hold, so that later copies end without a look at the consumer
	// log. Only for identities whose success is committed: a marker for anything else would lose the message. An
	// error may be ignored: the consumer log knows the success.
	Done(ctx context.Context, marks []Mark) error
}

// Hold says what Lock found under a key.
type Hold uint8

// What Lock finds. The zero Hold is none of them.
const (
	Mine        Hold = iota + 1 // locked now for the caller's token, or nobody could be asked and the policy is to proceed
	HeldByOther                 // another worker has it, or a value stands there that no rollbackd of this version writes
	DoneMarker                  // the identity's success is committed; BodyHash is that of the applied body
)

// String is the metric's word for it.
func (h Hold) String() string {
	switch h {
	case Mine:
		return "mine"
	case HeldByOther:
		return "held"
	case DoneMarker:
		return "done"
	}
	return "unknown"
}

// Held is what Lock found under one key.
type Held struct {
	Hold     Hold
	BodyHash [sha256.Size]byte // only with DoneMarker: SHA-256 of the body that was applied
	Holder   string            // only with HeldByOther: the holder's token, if the value is a rollbackd's
}

// Mark says that the effect of a message with this body is committed under the key.
type Mark struct {
	Key      LockKey
	BodyHash [sha256.Size]byte
}

// ErrLockUnavailable means that Redis did not answer, or answered with an error, and the policy is to pause. Nothing is
// known of the keys. Repeat the call later.
var ErrLockUnavailable = errors.New("the lock in redis is unavailable")

// LockKey is an identity prepared by a Locker. One made by another Locker, or by nobody, is refused.
type LockKey struct{ name string }

// String is the key's name in Redis, for an operator; empty for one of NoLock.
func (k LockKey) String() string { return k.name }

const lockKeyPrefix = "rollbackd:"

// lockKeySize is that of the prefix and an unpadded base64url SHA-256.
const lockKeySize = len(lockKeyPrefix) + 43

// newLockKey hashes the schema's UUID and the identity, each part with its length before it, so that no two of them
// share a key: not two identities whose parts join to the same bytes, and not those of another installation, or of a
// schema that was dropped and made again, on the same Redis.
func newLockKey(schemaID string, k Key) LockKey {
	var room [640]byte // a UUID and the longest valid identity fit, so nothing is allocated for the hash
	buf := room[:0]
	for _, part := range [...]string{schemaID, k.Group, k.Tag, k.Name} {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(part)))
		buf = append(buf, part...)
	}
	sum := sha256.Sum256(buf)
	var name [lockKeySize]byte
	copy(name[:], lockKeyPrefix)
	base64.RawURLEncoding.Encode(name[len(lockKeyPrefix):], sum[:])
	return LockKey{string(name[:])}
}

// The two forms of a value. They never meet: whatever the token, a lock's value does not begin like a marker's.
const (
	lockedPrefix = "lock:" // then the token
	donePrefix   = "done:" // then the 32 bytes of the body's hash
)

// readHeld judges the value that stands under a key. Only the exact form of a done marker is Done: taking anything else
// for one would lose a message, and taking it for held only delays it.
func readHeld(value, mine string) Held {
	if value == mine {
		return Held{Hold: Mine}
	}
	if hash, ok := readMarker(value); ok {
		return Held{Hold: DoneMarker, BodyHash: hash}
	}
	holder, _ := readToken(value)
	return Held{Hold: HeldByOther, Holder: holder}
}

func readMarker(value string) (hash [sha256.Size]byte, ok bool) {
	if len(value) != len(donePrefix)+sha256.Size || value[:len(donePrefix)] != donePrefix {
		return hash, false
	}
	copy(hash[:], value[len(donePrefix):])
	return hash, true
}

func readToken(value string) (token string, ok bool) { return strings.CutPrefix(value, lockedPrefix) }

// NoLock is the Locker of an installation without Redis: every key is free, always.
type NoLock struct{}

// LockKey returns the zero LockKey.
func (NoLock) LockKey(Key) LockKey { return LockKey{} }

// Lock says Mine of every key.
func (NoLock) Lock(_ context.Context, _ string, keys []LockKey) ([]Held, error) {
	return allMine(len(keys)), nil
}

// Release does nothing.
func (NoLock) Release(context.Context, string, []LockKey) error { return nil }

// Done does nothing.
func (NoLock) Done(context.Context, []Mark) error { return nil }

func allMine(n int) []Held {
	held := make([]Held, n)
	for i := range held {
		held[i].Hold = Mine
	}
	return held
}
