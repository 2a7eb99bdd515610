package lock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Locker keeps two workers off one name. It only saves work: everything holds without it, with [None], and with a
// server that is flushed, restarted, frozen, absent, or full of wrong values. What must not happen twice is kept from
// happening by the consumer log, and only the log says what has happened.
//
// All methods may be called by many goroutines, keep none of the slices they are given, and wait no longer than the
// implementation's timeout for one call. A call whose ctx ends returns the cause of that end, and is no failure of the
// server.
type Locker interface {
	// Lock tries all names in one round trip and says of each, in order, what it found. It never waits for a holder.
	// The token names the holder and must be unlike that of every other batch that may be in hand anywhere; a name that
	// this token holds already is Mine again, so a call may be repeated with the same token after an error.
	//
	// An error means that nothing is known of any name: ErrUnavailable when the server is away and the policy is to
	// pause (repeat the call later), or the end of ctx. Every name found Mine must be given to Release or Done.
	//
	// What it finds is a hint, whatever it is. Who ends a message because of it, without its row, loses messages: the
	// marker of a row that MySQL does not have (a schema that was made anew, cloned or restored, a forged value) looks
	// like every other one.
	Lock(ctx context.Context, token string, names []Name) ([]Held, error)

	// Release gives back the names that the token still holds and leaves every other one alone. An error may be
	// ignored: a lock that is not released expires by itself, or is given up by Run.
	Release(ctx context.Context, token string, names []Name) error

	// Done writes done markers over whatever stands under the names, so that later copies are looked up in the consumer
	// log instead of losing a transaction to the row that they would insert. A marker for an identity without a success
	// row costs that look and nothing else. Where markers cost more than they save, Done frees the names, whoever holds
	// them. An error may be ignored: the consumer log knows the success.
	Done(ctx context.Context, marks []Mark) error

	// Show looks at one name, for an operator: also while Lock does not ask the server. Its error is the server's.
	Show(ctx context.Context, name Name) (State, error)

	// Run renews the locks in hand well before their time is over and, while the server is away, finds out when it is
	// back. It returns nil when ctx ends, leaving the locks in hand to their time. It may be called once.
	Run(ctx context.Context) error

	// Up says whether the server is being asked, since when it is so, and, while it is not, why. Without a cause nothing
	// is wrong.
	Up() (up bool, since time.Time, cause error)

	// Attempts returns how many names fared so in all calls of Lock.
	Attempts(r Result) uint64
}

// Hold says what Lock found under a name, and how one fared.
type Hold uint8

// What Lock finds. The zero Hold is none of them.
const (
	Mine        Hold = iota + 1 // locked now for the caller's token, or nobody could be asked and the policy is to proceed
	HeldByOther                 // another worker has it, for at most the lock's TTL unless it renews it
	DoneMarker                  // somebody says that the identity's success is committed; BodyHash is that of the body
	// no rollbackd with this TTL wrote it: another value or type, a lock without an end in sight
	Foreign

	failed   // counted alone: the server failed, nothing is known of the name
	bypassed // counted alone: the server was away and was not asked
	results
)

// String is the metric's word for it.
func (h Hold) String() string {
	return [...]string{"unknown", "mine", "held", "done", "foreign", "error", "bypassed"}[h]
}

// Held is what Lock found under one name.
type Held struct {
	Hold     Hold
	BodyHash [sha256.Size]byte // only with DoneMarker: SHA-256 of the body that is said to be applied
	Holder   string            // only with HeldByOther: the holder's token
}

// Mark says that the effect of a message with this body is committed under the name.
type Mark struct {
	Name     Name
	BodyHash [sha256.Size]byte
}

// NamesOf are the names of marks.
func NamesOf(marks []Mark) []Name {
	names := make([]Name, len(marks))
	for i, m := range marks {
		names[i] = m.Name
	}
	return names
}

// State is what stands under a name now, for an operator.
type State struct {
	Hold  Hold          // 0: free; HeldByOther: locked by Token; DoneMarker; Foreign: the value is none of rollbackd's
	Token string        // the holder's; empty if nobody holds it
	Hash  []byte        // the body's in a done marker
	TTL   time.Duration // until it expires; negative: never, so rollbackd did not write it
}

// Result says how one name fared in a Lock: what was found, or why nothing was.
type Result = Hold

// The results: each name of each Lock counts as one of them.
const (
	ResultMine     = Mine
	ResultHeld     = HeldByOther
	ResultDone     = DoneMarker
	ResultForeign  = Foreign
	ResultFailed   = failed
	ResultBypassed = bypassed
)

// Results returns all of them.
func Results() []Result {
	return []Result{ResultMine, ResultHeld, ResultDone, ResultForeign, ResultFailed, ResultBypassed}
}

// Kind says on what a lock stands.
type Kind string

// The kinds. docs/guarantees.md says what each of them gives.
const (
	KindRedis     Kind = "redis"     // one Redis, a cluster, or a master and its sentinels
	KindRedlock   Kind = "redlock"   // several masters of Redis that know nothing of each other: more than half of them
	KindZooKeeper Kind = "zookeeper" // ephemeral nodes: what is held goes with the session of its process
	KindMySQL     Kind = "mysql"     // rows beside the consumer log, for who has no Redis
	KindOff       Kind = "off"       // none: the consumer log alone
)

// InRedis reports whether a kind stands on Redis.
func (k Kind) InRedis() bool { return k == KindRedis || k == KindRedlock }

// Kinds returns all of them.
func Kinds() []Kind { return []Kind{KindRedis, KindRedlock, KindZooKeeper, KindMySQL, KindOff} }

// Policy says what Lock does while the server is away.
type Policy string

// The policies.
const (
	Proceed Policy = "proceed" // every name is Mine at once: the consumer log alone keeps the promise
	Pause   Policy = "pause"   // ErrUnavailable at once: nothing is consumed until the server answers
)

// ErrUnavailable means that the server did not answer, or answered with an error, and the policy is to pause. Nothing
// is known of the names. Repeat the call later.
var ErrUnavailable = errors.New("the lock is unavailable")

// Options say how a lock works, whatever its server. A zero field has the default named beside it.
type Options struct {
	// LockTTL is how long a dead worker's lock keeps others off; renewed at a third. A lock that would stand for longer is
	// Foreign, so those of a worker with a longer TTL save no work. 10s
	LockTTL time.Duration
	DoneTTL time.Duration // how long a done marker tells of a success. 5m
	OnError Policy        // Proceed
	Timeout time.Duration // of one call, its repetitions included. 1s
	// MaxHold ends the renewing of a lock that was neither released nor done, so that a forgotten one does not keep its
	// identity from everybody until this process ends. 15m
	MaxHold time.Duration
	Log     *slog.Logger // told once of each loss and each return of the server. Nothing is logged without it
}

// WithDefaults fills what is zero.
func (o Options) WithDefaults() Options {
	o.LockTTL = cmp.Or(o.LockTTL, 10*time.Second)
	o.DoneTTL = cmp.Or(o.DoneTTL, 5*time.Minute)
	o.OnError = cmp.Or(o.OnError, Proceed)
	o.Timeout = cmp.Or(o.Timeout, time.Second)
	o.MaxHold = cmp.Or(o.MaxHold, 15*time.Minute)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

func (o Options) validate() error {
	var errs []error
	bad := func(is bool, format string, values ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, values...))
		}
	}
	bad(o.LockTTL < 100*time.Millisecond, "lock TTL %v is under 100ms", o.LockTTL)
	bad(o.DoneTTL < time.Millisecond, "done TTL %v is under 1ms", o.DoneTTL)
	bad(o.Timeout < time.Millisecond, "timeout %v is under 1ms", o.Timeout)
	bad(o.MaxHold < o.LockTTL, "locks are renewed for %v, under their TTL %v", o.MaxHold, o.LockTTL)
	bad(o.OnError != Proceed && o.OnError != Pause, "policy %q is neither %q nor %q", o.OnError, Proceed, Pause)
	return errors.Join(errs...)
}

// None is the Locker of an installation without a lock: every name is free, always.
type None struct{}

var _ Locker = None{}

// Lock says Mine of every name.
func (None) Lock(_ context.Context, _ string, names []Name) ([]Held, error) {
	return slices.Repeat([]Held{{Hold: Mine}}, len(names)), nil
}

// Release does nothing.
func (None) Release(context.Context, string, []Name) error { return nil }

// Done does nothing.
func (None) Done(context.Context, []Mark) error { return nil }

// Show says that the name is free.
func (None) Show(context.Context, Name) (State, error) { return State{}, nil }

// Run waits for the end of ctx.
func (None) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Up says that nobody is asked, and that nothing is wrong with that.
func (None) Up() (up bool, since time.Time, cause error) { return false, time.Time{}, nil }

// Attempts returns 0: nobody was asked.
func (None) Attempts(Result) uint64 { return 0 }

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
