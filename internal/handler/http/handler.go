package http

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// The headers of a call.
const (
	// HeaderKey names the message: the same for every attempt and every replay, and unlike that of any other message.
	HeaderKey = "Idempotency-Key"
	// HeaderAttempt counts the calls since the message was published or replayed, from 1.
	HeaderAttempt = "X-Rollbackd-Attempt"
	// HeaderMessage is the message's group, tag and key, each percent-encoded, with slashes in between. It is for people.
	HeaderMessage = "X-Rollbackd-Message"
)

// Options say what is called, and how.
type Options struct {
	// Target is an http or https URL without user and password.
	Target string
	// Timeout bounds a call with its answer, and Concurrency how many are made at once; see [consumer.CallOptions].
	Timeout     time.Duration
	Concurrency int
	// Token goes into the header Authorization, behind Bearer; Secrets sign each call in the header
	// X-Rollbackd-Signature, as [deadletter.SignatureHeader] says. Both are asked for once a second. Nil, or empty: none.
	Token   func() string
	Secrets func() []string
	// CAFile, CertFile and KeyFile are PEM files: who signs the service's certificate, and the caller's own. They are read
	// again once a second. Empty: the system's list, and none.
	CAFile, CertFile, KeyFile string
	// Warn is told, once for each, why changed files cannot be used; the former ones stay. Nil: nobody is.
	Warn func(error)
	// Repeated is told of each call that was made once more on another connection. Nil: nobody is.
	Repeated func()
	// ProbeAfter is that of [consumer.CallOptions].
	ProbeAfter time.Duration
}

// New makes the handler. It connects to nothing.
func New(o Options) (consumer.Handler, error) {
	c, err := newCaller(o)
	if err != nil {
		return nil, err
	}
	return consumer.Calls(c.call, consumer.CallOptions{
		Concurrency: o.Concurrency, Timeout: o.Timeout, ProbeAfter: o.ProbeAfter,
	}), nil
}

// caller makes the calls.
type caller struct {
	o      Options
	host   string // the service, as errors name it: the rest of the URL may hold a secret
	access *access
	now    func() time.Time
}

func newCaller(o Options) (*caller, error) {
	u, err := url.Parse(o.Target)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, errors.New("the target must be a URL like https://stock.example.com/rollbacks, without a password")
	}
	a := &access{o: o, certs: certs.Store{Warn: o.Warn}}
	if err := a.ask(); err != nil {
		return nil, err
	}
	return &caller{o: o, host: u.Scheme + "://" + u.Host, access: a, now: time.Now}, nil
}

// call makes one call. A connection that was used before may be dead by now: then the service closed it while nothing
// was on its way, or ended. So a call that it is lost with, before a byte came back, is made once more, on a connection
// of its own; the key makes one of two.
func (c *caller) call(ctx context.Context, m consumer.Message) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var sent, used, answered atomic.Bool // how far the call came, on a connection that was used before
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(i httptrace.GotConnInfo) { used.Store(i.Reused) },
		WroteHeaders:         func() { sent.Store(true) },
		GotFirstResponseByte: func() { answered.Store(true) },
	})
	login := c.access.now()
	req, err := c.request(ctx, m, login)
	if err != nil {
		return err
	}
	client := login.kept
	if len(m.Body) == 0 { // net/http would repeat it for as long as it finds dead connections
		client = newClient(c.o, login.config, false)
	}
	resp, err := client.Do(req)
	if err != nil && used.Load() && !answered.Load() && ctx.Err() == nil {
		if c.o.Repeated != nil {
			c.o.Repeated()
		}
		again := req.Clone(ctx)
		again.Body = io.NopCloser(bytes.NewReader(m.Body))
		resp, err = newClient(c.o, login.config, false).Do(again)
	}
	if err != nil {
		return c.noAnswer(withoutURL(err), sent.Load())
	}
	defer resp.Body.Close()
	return c.meaning(resp, body(ctx, resp, stop))
}

func (c *caller) request(ctx context.Context, m consumer.Message, login login) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.o.Target, bytes.NewReader(m.Body))
	if err != nil {
		return nil, consumer.Misconfigured(errors.New("the target cannot be requested"))
	}
	req.GetBody = nil // with it net/http would repeat the call by itself, once for each connection that it finds dead
	h := req.Header
	h.Set(HeaderKey, KeyOf(m.Identity))
	h.Set(HeaderAttempt, strconv.Itoa(m.Attempt))
	h.Set(HeaderMessage, url.PathEscape(m.Group)+"/"+url.PathEscape(m.Tag)+"/"+url.PathEscape(m.Key))
	h.Set("Content-Type", contentType(m))
	h.Set("User-Agent", "rollbackd")
	if !trace.SpanContextFromContext(ctx).IsValid() { // else the call is its child
		ctx = trace.ContextWithRemoteSpanContext(ctx, wire.TraceOf(m.Headers))
	}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	if login.token != "" {
		h.Set("Authorization", "Bearer "+login.token)
	}
	if signed := deadletter.Signature(login.hmac, m.Body, c.now()); signed != "" {
		h.Set(deadletter.SignatureHeader, signed)
	}
	return req, nil
}

var mediaType = regexp.MustCompile(`^[!-~]+/[!-~]+(; ?[ -~]+)?$`)

// contentType is what the producer says, if it says something that a header can hold.
func contentType(m consumer.Message) string {
	if len(m.ContentType) <= 255 && mediaType.MatchString(m.ContentType) {
		return m.ContentType
	}
	return "application/json"
}

// KeyOf is the Idempotency-Key of a message: 43 characters of base64url, the SHA-256 of group, tag and key, each behind
// its length as four bytes, the highest first. It depends on nothing else, so that every attempt, every replay and
// every copy of a message has the same.
func KeyOf(id dedup.Identity) string {
	sum := sha256.New()
	for _, part := range []string{id.Group, id.Tag, id.Key} {
		var size [4]byte
		binary.BigEndian.PutUint32(size[:], uint32(len(part))) //nolint:gosec // at most 255
		sum.Write(size[:])
		sum.Write([]byte(part))
	}
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil))
}

// withoutURL is what happened, without the address, which may hold a secret.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// Ask asks whether the target answers, without a message: a request HEAD with the credentials. Any answer is one; its
// status is returned. The error of a call that came to nothing names the service and no secret.
func Ask(ctx context.Context, o Options) (status int, err error) {
	c, err := newCaller(o)
	if err != nil {
		return 0, err
	}
	login := c.access.now()
	defer login.kept.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, o.Target, nil)
	if err != nil {
		return 0, c.errorf("the target cannot be requested")
	}
	if login.token != "" {
		req.Header.Set("Authorization", "Bearer "+login.token)
	}
	req.Header.Set("User-Agent", "rollbackd doctor")
	resp, err := login.kept.Do(req)
	if err != nil {
		return 0, c.noAnswer(withoutURL(err), false)
	}
	defer resp.Body.Close()
	return resp.StatusCode, nil
}
