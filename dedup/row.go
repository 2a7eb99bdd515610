package dedup

import (
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strings"
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
	Identity
	Version
	BodyHash []byte // SHA-256 of the body; nil when the row does not know it
	Reason   Reason // why it is dead; in Failed, why it will be once its letter is confirmed (see Condemned)
	Remark   string // the last error, or who discarded it and why

	// By the database's clock. At is the last transition, dated back by the retry delay when a claim was given back unrun.
	// An attempt that was put off leaves At as it was before, so Age goes on.
	// Zero in a row that a transition returned, and DeadAt in a row that is not dead.
	At, CreatedAt, DeadAt time.Time
	// Age is the time since At, or until then: a clock that has gone back since leaves rows ahead of it.
	Age time.Duration
	// LeaseLive: claimed, and the lease is not over. Due: failed, and the next attempt may begin.
	LeaseLive, Due bool
	// Wait is the time until the lease is over or the row is due; 0 when it is.
	Wait time.Duration

	// Only Read fills these.
	MessageID        string
	Body, Properties []byte

	claimed bool // made by Claim.Row: the holder of this row holds the claim
	// due is the time until a failed row is due whose handler has named when, in microseconds; below 0 when it is.
	due   sql.NullInt64
	dueAt time.Time // the same in a Memory
}

// Condemned reports whether the row failed for good and keeps the reason of a letter that is not confirmed yet: it gets
// no further attempt, however many are allowed. A row that was exhausted keeps a reason too (crashed), but when more
// attempts are allowed since, it gets them.
func (r Row) Condemned() bool {
	return r.Status == Failed && r.Reason != "" && r.Reason != ReasonCrashed
}

// MarkAlone ends the owner, or the token, of a claim that took over an expired lease or a row with this mark, and of a
// replay of what was dead because a process died with it: whoever takes the row up next must not do so together with
// others.
const MarkAlone = "/alone"

// MarkGroup ends the owner of claims beside which others were at work in the process: those of a group, and those of
// one message that needs not run while nothing else does.
const MarkGroup = "/group"

// MarkOrphans ends the owner of claims that took over expired leases together, while nothing else of the process ran:
// each of them may have killed a process, but hardly all have.
const MarkOrphans = MarkGroup + MarkAlone

// ClaimedWithOthers reports whether the row was claimed while others were at work, so that another message may have
// killed the process.
func (r Row) ClaimedWithOthers() bool {
	return r.Status == Processing && (strings.HasSuffix(r.Owner, MarkGroup) || r.TakenWithOthers())
}

// TakenWithOthers reports whether that claim took it over.
func (r Row) TakenWithOthers() bool {
	return r.Status == Processing && strings.HasSuffix(r.Owner, MarkOrphans)
}

// RunsAlone reports whether the message may have killed a process: its row was marked, or its last attempt never came
// back.
func (r Row) RunsAlone() bool {
	return strings.HasSuffix(r.Owner, MarkAlone) || r.Reason == ReasonCrashed
}

// ReplayToken is token for a replay of this row, marked if its message may have killed a process. It is longer by
// MarkAlone at most.
func (r Row) ReplayToken(token string) string {
	if r.RunsAlone() || r.Reason == ReasonDeliveryLimit {
		return token + MarkAlone
	}
	return token
}

// Entry is what a message leaves in its row.
type Entry struct {
	Identity
	BodyHash   [sha256.Size]byte // all zero: not known
	MessageID  string
	Body       []byte // nil in the fast path, which stores none
	Properties []byte // AMQP properties and headers as JSON
	Came       string // how it came, for the remark of a row that has no other; "": nothing is told
}

// Claim is the right to one attempt. It ends with Success, Fail, Unclaim or Dead, or when the lease is over and
// somebody else takes the row.
type Claim struct {
	Identity
	Attempts int // including this one
	Replays  int
	Owner    string
	BodyHash []byte
	Remark   string // what the row said before this attempt: the error of the last one

	at  time.Time     // the row's At before this attempt; zero when it had none
	age time.Duration // and its Age
}

// Row is the claimed row, as Dead takes it.
func (c Claim) Row() Row {
	return Row{Identity: c.Identity, Version: c.version(), BodyHash: c.BodyHash, Remark: c.Remark, LeaseLive: true,
		claimed: true}
}

// GivenBack is the row once the claim was given back unrun, as another claim takes it.
func (c Claim) GivenBack() Row {
	return Row{Identity: c.Identity, Version: Version{Failed, c.Attempts - 1, c.Replays, c.Owner}, BodyHash: c.BodyHash,
		Remark: c.Remark, At: c.at, Age: c.age, Due: true}
}

// putOff begins the remark of a row whose last attempt was put off.
const putOff = "put off: "

// PutOff reports whether the row waits because its last attempt was put off, which counts as none.
func (r Row) PutOff() bool { return r.Status == Failed && strings.HasPrefix(r.Remark, putOff) }

// Applied is the version of the row once the claim's effect is committed. A COMMIT whose answer was lost is looked up
// with Holds and this version.
func (c Claim) Applied() Version { return Version{Success, c.Attempts, c.Replays, c.Owner} }

func (c Claim) version() Version { return Version{Processing, c.Attempts, c.Replays, c.Owner} }

// Event is one step of an identity's story. The fast path writes none.
type Event struct {
	ID int64 // grows with every step that is written, 0 of one that is not; steps may become visible in another order
	Identity
	At       time.Time     // by the database's clock
	Age      time.Duration // by the same; as in Row
	From, To Status
	Attempt  int // the row's attempts after the step
	Replays  int
	Owner    string
	Error    string
	By       string // who, when it was a person or a replay
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

func validateOwner(owner string) error { return checkLength("an owner", owner, MaxOwner) }

func validateReason(reason Reason) error {
	if !utf8.ValidString(string(reason)) {
		return errors.New("a reason must be valid UTF-8")
	}
	return checkLength("a reason", string(reason), MaxReason)
}

func checkLength(what, text string, most int) error {
	if text == "" || len(text) > most {
		return fmt.Errorf("%s has %d bytes: it must have 1 to %d", what, len(text), most)
	}
	return nil
}
