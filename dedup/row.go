package dedup

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// What the columns hold at most. Longer text is cut, a longer body keeps its beginning, longer properties are left out,
// a longer owner or reason is refused. Body and properties, every byte of them escaped, fit into a statement of 1 MiB,
// the smallest max_allowed_packet that is in use: else a message that is too large could not even be filed as dead.
const (
	MaxRemark     = 1000 // characters
	MaxBy         = 255  // characters
	MaxReason     = 32   // bytes
	MaxOwner      = 100  // bytes
	MaxMessageID  = 255  // bytes; AMQP allows no more
	MaxBody       = 256 << 10
	MaxProperties = 64 << 10
)

// Row is one identity's row as it was read, or as a transition left it.
type Row struct {
	Key
	Version
	BodyHash []byte // SHA-256 of the body; nil when the row does not know it
	Reason   string // why it is dead
	Remark   string // the last error, or who discarded it and why

	// By the database's clock. At is the last transition, dated back by the retry delay when a claim was given back unrun.
	// Zero in a row that a transition returned, and DeadAt in a row that is not dead.
	At, CreatedAt, DeadAt time.Time
	// Age is the time since At.
	Age time.Duration
	// LeaseLive: claimed, and the lease is not over. Due: failed, and the next attempt may begin.
	LeaseLive, Due bool
	// Wait is the time until the lease is over or the row is due; 0 when it is.
	Wait time.Duration

	// Only Read fills these.
	MessageID        string
	Body, Properties []byte

	claimed bool // made by Claim.Row: the holder of this row holds the claim
}

// Entry is what a message leaves in its row.
type Entry struct {
	Key
	BodyHash   [sha256.Size]byte // all zero: not known
	MessageID  string
	Body       []byte // nil in the fast path, which stores none
	Properties []byte // AMQP properties and headers as JSON
}

// Claim is the right to one attempt. It ends with Success, Fail, Unclaim or Dead, or when the lease is over and
// somebody else takes the row.
type Claim struct {
	Key
	Attempts int // including this one
	Replays  int
	Owner    string
	BodyHash []byte
	Remark   string // what the row said before this attempt: the error of the last one
}

// Row is the claimed row, as Dead takes it.
func (c Claim) Row() Row {
	return Row{Key: c.Key, Version: c.version(), BodyHash: c.BodyHash, Remark: c.Remark, LeaseLive: true, claimed: true}
}

// Applied is the version of the row once the claim's effect is committed. A COMMIT whose answer was lost is looked up
// with Holds and this version.
func (c Claim) Applied() Version { return Version{Success, c.Attempts, c.Replays, c.Owner} }

func (c Claim) version() Version { return Version{Processing, c.Attempts, c.Replays, c.Owner} }

// Event is one step of an identity's story. The fast path writes none.
type Event struct {
	At       time.Time // by the database's clock
	From, To Status
	Attempt  int // the row's attempts after the step
	Replays  int
	Owner    string
	Error    string
	By       string // who, when it was a person or a replay
}

// Letter is a message whose letter is confirmed and which has no row yet.
type Letter struct {
	Entry
	Reason string // 1 to MaxReason bytes
	Cause  string
}

// ReplayNote says who reopens a row.
type ReplayNote struct {
	By     string // the person or process
	Filter string // what was asked for
	// Token is unique per reopened letter, 1 to MaxOwner bytes: it stands in the row as owner, so that a reopen whose
	// answer was lost is recognised.
	Token string
	// Discarded also reopens what a person discarded.
	Discarded bool
	// Mended, if set, says that the entry's body is another than the row's and takes its place, hash, message id and
	// properties with it. It is the entry under which a copy that still has the former body will be filed, its key taken:
	// that identity ends as discarded in the same transaction, so that no such copy goes anywhere. Zero when the former
	// body is not known.
	Mended *Entry
}

func validateOwner(owner string) error {
	if owner == "" || len(owner) > MaxOwner {
		return fmt.Errorf("an owner of %d bytes: it must have 1 to %d", len(owner), MaxOwner)
	}
	return nil
}

func validateReason(reason string) error {
	switch {
	case reason == "" || len(reason) > MaxReason:
		return fmt.Errorf("reason %q: it must have 1 to %d bytes", reason, MaxReason)
	case !utf8.ValidString(reason):
		return errors.New("a reason must be valid UTF-8")
	}
	return nil
}
