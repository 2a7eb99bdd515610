package lock

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
	"time"
)

// Name is what is locked: 53 bytes of visible ASCII, none of them blank, slash or quote, so that every server takes it
// for a key. Only [NameOf] makes one; the zero Name is refused by every Locker but [None].
type Name struct{ text string }

// String is the name as a server shows it, for an operator; empty for the zero Name.
func (n Name) String() string { return n.text }

const namePrefix = "rollbackd:"

// nameSize is that of the prefix and an unpadded base64url SHA-256.
const nameSize = len(namePrefix) + 43

// NameOf hashes the UUID of the consumer log's schema and an identity, each part with its length before it, so that no
// two of them share a name: not two identities whose parts join to the same bytes, and not those of another
// installation, or of a schema that was dropped and made again, on the same server. Without a schema there is no Name.
func NameOf(schemaID, group, tag, key string) Name {
	if schemaID == "" {
		return Name{}
	}
	var room [640]byte // a UUID and the longest valid identity fit, so nothing is allocated for the hash
	buf := room[:0]
	for _, part := range [...]string{schemaID, group, tag, key} {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(part)))
		buf = append(buf, part...)
	}
	sum := sha256.Sum256(buf)
	var text [nameSize]byte
	copy(text[:], namePrefix)
	base64.RawURLEncoding.Encode(text[len(namePrefix):], sum[:])
	return Name{string(text[:])}
}

// Check refuses the zero Name. Every Locker calls it for each name that it is given: all zero names would share a lock,
// and one done marker would speak for all of them.
func (n Name) Check() error {
	if len(n.text) != nameSize {
		return errors.New("a name that NameOf did not make")
	}
	return nil
}

func checkNames(names []Name) error {
	for _, n := range names {
		if err := n.Check(); err != nil {
			return err
		}
	}
	return nil
}

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
	return read(value)
}

// ReadState says what a value means that stands under a name for a time.
func ReadState(value string, ttl time.Duration) State {
	h := read(value)
	s := State{Hold: h.Hold, Token: h.Holder, TTL: ttl}
	if h.Hold == DoneMarker {
		s.Hash = h.BodyHash[:]
	}
	return s
}

func read(value string) Held {
	if hash, ok := strings.CutPrefix(value, donePrefix); ok && len(hash) == sha256.Size {
		return Held{Hold: DoneMarker, BodyHash: [sha256.Size]byte([]byte(hash))}
	}
	if token, ok := strings.CutPrefix(value, lockedPrefix); ok && token != "" {
		return Held{Hold: HeldByOther, Holder: token}
	}
	return Held{Hold: Foreign}
}
