package operator

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// How long requests that are done once are remembered, and how long one may take before another process may take it up.
const (
	OnceKept  = 24 * time.Hour
	onceLease = 30 * time.Second
)

// MaxOnceName bounds an Idempotency-Key in bytes, MaxAnswer the body of an answer that is given again.
const (
	MaxOnceName = 255
	MaxAnswer   = 256 << 10
)

// What Begin says of a request that must not be done.
var (
	// ErrOtherRequest: the name stands for another request.
	ErrOtherRequest = errors.New("this key was used for another request")
	// ErrRunning: the same request is being done. Ask again in a moment.
	ErrRunning = errors.New("the same request is being done right now")
	// ErrNotIssued: no such token was issued to this person, or longer than OnceKept ago. The page must be loaded again.
	ErrNotIssued = errors.New("this form is too old, or was not given to you: load the page again")
)

// Answer is what was answered to a request, to be answered again.
type Answer struct {
	Status      int
	ContentType string
	Location    string // of a redirection
	Body        []byte // at most MaxAnswer
}

// OnceRequest is a request under a name.
type OnceRequest struct {
	Name string   // an Idempotency-Key, or a token of Issue; 1 to MaxOnceName bytes
	Hash [32]byte // SHA-256 of all that was asked for
	// Issued: the name must be a token of Issue.
	Issued bool
}

// Once is a request that this process is to do. Its act has the id ActID, whoever does it and however often it is
// begun: hand that to Start, Pause or Resume, and it is done once. Then call Finish, or Release if nothing was done.
type Once struct {
	ActID string

	d           *Operator
	actor, name []byte
	owner       string
}

// Issue makes a one-time token for a form that is shown to a person: it is signed, and has no row until the form is
// sent, since to look at a page must change nothing. It is good for OnceKept, on every daemon.
func (d *Operator) Issue(ctx context.Context, who Actor) (token string, err error) {
	key, now, err := d.o.Records.FormKey(ctx)
	if err != nil {
		return "", fmt.Errorf("issue the token of a form: %w", err)
	}
	return d.tokenOf(key, who, now), nil
}

func (d *Operator) tokenOf(key []byte, who Actor, at time.Time) string {
	said := strconv.FormatInt(at.UnixMicro(), 36) + "." + rand.Text()
	return said + "." + d.sign(key, who, said)
}

// issued says why a token is not one that Issue gave to this person lately.
func (d *Operator) issued(ctx context.Context, who Actor, token string) error {
	key, now, err := d.o.Records.FormKey(ctx)
	if err != nil {
		return fmt.Errorf("read the token of a form: %w", err)
	}
	end := max(0, strings.LastIndexByte(token, '.'))
	said, sum := token[:end], strings.TrimPrefix(token[end:], ".")
	at, _, _ := strings.Cut(said, ".")
	micro, err := strconv.ParseInt(at, 36, 64)
	age := now.Sub(time.UnixMicro(micro))
	if err != nil || age >= OnceKept || age < -time.Minute || !hmac.Equal([]byte(sum), []byte(d.sign(key, who, said))) {
		return ErrNotIssued
	}
	return nil
}

// sign binds what a token says to a person and a group. Neither can be taken for a part of the other: said has no zero
// byte, and the person is hashed.
func (d *Operator) sign(key []byte, who Actor, said string) string {
	sum := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(sum, "%s\x00%s\x00%s", said, actorKey(who), d.o.Group) // which never fails
	return hex.EncodeToString(sum.Sum(nil))
}

// Begin takes a request in one atomic step: of many who begin it at once, on whatever daemons, one gets the Once. All
// others get the answer, when there is one, or ErrRunning, or ErrOtherRequest. A request whose process died is taken up
// by whoever asks again after half a minute, under the same ActID.
func (d *Operator) Begin(ctx context.Context, who Actor, r OnceRequest) (*Once, *Answer, error) {
	if r.Name == "" || len(r.Name) > MaxOnceName {
		return nil, nil, fmt.Errorf("%w: a key of %d bytes, want 1 to %d", ErrRequest, len(r.Name), MaxOnceName)
	}
	o := &Once{ActID: newID(), d: d, actor: actorKey(who), name: []byte(r.Name), owner: d.name + "/" + rand.Text()}
	r.Hash = sha256.Sum256(append(r.Hash[:], d.o.Queue...)) // of another queue it is another one
	if r.Issued {
		if err := d.issued(ctx, who, r.Name); err != nil {
			return nil, nil, err
		}
	}
	_, err := d.db.ExecContext(ctx, "INSERT INTO "+d.once+" (group_name, actor, name, act_id, state, request_hash, "+
		"owner, lease_until, created_at) VALUES (?, ?, ?, ?, 1, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, "+
		"UTC_TIMESTAMP(6))", []byte(d.o.Group), o.actor, o.name, []byte(o.ActID), r.Hash[:], []byte(o.owner),
		onceLease.Microseconds())
	if err == nil {
		return o, nil, nil
	}
	if !mysqldb.Duplicate(err) {
		return nil, nil, fmt.Errorf("take the request: %w", err)
	}
	_, err = d.db.ExecContext(ctx, "UPDATE "+d.once+" SET state = 1, request_hash = ?, owner = ?, lease_until = "+
		"UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE group_name = ? AND actor = ? AND name = ? AND state = 1 "+
		"AND request_hash = ? AND "+free+" AND created_at > UTC_TIMESTAMP(6) - INTERVAL ? SECOND", r.Hash[:],
		[]byte(o.owner), onceLease.Microseconds(), []byte(d.o.Group), o.actor, o.name, r.Hash[:], int(OnceKept.Seconds()))
	if err != nil {
		return nil, nil, fmt.Errorf("take the request: %w", err)
	}
	return o.look(ctx, r)
}

// look says by its row what became of a request that was to be taken.
func (o *Once) look(ctx context.Context, r OnceRequest) (*Once, *Answer, error) {
	var state int
	var hash []byte
	var owner sql.NullString
	var a Answer
	err := o.d.db.QueryRowContext(ctx, "SELECT act_id, state, request_hash, owner, status, content_type, location, body"+
		" FROM "+o.d.once+" WHERE group_name = ? AND actor = ? AND name = ?", []byte(o.d.o.Group), o.actor, o.name).Scan(
		&o.ActID, &state, &hash, &owner, &a.Status, &a.ContentType, &a.Location, &a.Body)
	switch {
	case errors.Is(err, sql.ErrNoRows): // it was too old, and is deleted
		return nil, nil, ErrNotIssued
	case err != nil:
		return nil, nil, fmt.Errorf("take the request: %w", err)
	case !bytes.Equal(hash, r.Hash[:]):
		return nil, nil, ErrOtherRequest
	case state == 2:
		return nil, &a, nil
	case owner.String == o.owner:
		return o, nil, nil
	}
	return nil, nil, ErrRunning
}

// Finish keeps the answer, to be given again. Its error does not undo what was done: asked again, the request finds its
// act.
func (o *Once) Finish(ctx context.Context, a Answer) error {
	if len(a.Body) > MaxAnswer {
		return fmt.Errorf("keep the answer: it has %d bytes, at most %d", len(a.Body), MaxAnswer)
	}
	return o.update(ctx, "keep the answer", "state = 2, status = ?, content_type = ?, location = ?, body = ?, "+
		"lease_until = NULL", a.Status, []byte(a.ContentType), []byte(a.Location), a.Body)
}

// Release lets a request that was not done be asked for again at once, for example after a server's error.
func (o *Once) Release(ctx context.Context) error {
	return o.update(ctx, "release the request", "lease_until = UTC_TIMESTAMP(6)")
}

func (o *Once) update(ctx context.Context, what, set string, args ...any) error {
	args = append(args, []byte(o.d.o.Group), o.actor, o.name, []byte(o.owner))
	_, err := o.d.db.ExecContext(ctx, "UPDATE "+o.d.once+" SET "+set+" WHERE group_name = ? AND actor = ? AND name = ? "+
		"AND state = 1 AND owner = ?", args...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// actorKey is an actor as part of a key: what one person names is nothing to another.
func actorKey(who Actor) []byte {
	sum := sha256.Sum256([]byte(who.Name))
	return []byte(hex.EncodeToString(sum[:]))
}
