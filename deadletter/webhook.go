package deadletter

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// SignatureHeader holds "t=SECONDS,v1=HEX": when the request was signed, in seconds since 1970, and the HMAC-SHA256,
// with the shared secret as its key, of these seconds, a full stop and the body as it was sent. While a secret is
// changed for another there is a v1 for each of the two. See [VerifySignature].
const SignatureHeader = "X-Rollbackd-Signature"

// WebhookOptions say where a webhook goes.
type WebhookOptions struct {
	// URL is http or https. What it holds besides the host (user, path, query) may be secret and is in no error.
	URL string
	// Secrets are asked for before each request, and each of them signs it; nil or none: unsigned. Two are for the time
	// in which the receiver is told the next one. Empty ones are left out.
	Secrets func() []string
	// Timeout bounds one request with its answer. Default 10s.
	Timeout time.Duration
	// TracerProvider, if set, takes a span for each request, which the request names in its headers (W3C Trace Context).
	TracerProvider trace.TracerProvider
}

// Webhook is a [Notifier] that posts new letters as JSON: {"letters":[…]}, each as [Letter] says. Only an answer of the
// class 2xx counts as notified. A redirect does not: what was signed for one address must not go to another. Safe for
// many goroutines.
type Webhook struct {
	o      WebhookOptions
	client *http.Client
	now    func() time.Time
	tracer trace.Tracer
}

var _ Notifier = (*Webhook)(nil)

const (
	webhookTimeout = 10 * time.Second
	// webhookAnswer is how much of an answer is read, so that the connection can be used again.
	webhookAnswer = 64 << 10
)

// NewWebhook checks o. It connects to nothing.
func NewWebhook(o WebhookOptions) (*Webhook, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		// which may hold a secret
		return nil, errors.New("dead-letter webhook: want a URL like https://example.com/dead-letters")
	}
	if o.Timeout <= 0 {
		o.Timeout = webhookTimeout
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxConnsPerHost = 2, 2
	w := &Webhook{o: o, now: time.Now, client: &http.Client{
		Transport: transport, Timeout: o.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	w.tracer = cmp.Or(o.TracerProvider, trace.TracerProvider(noop.NewTracerProvider())).Tracer(
		"github.com/rollbackd/rollbackd/deadletter")
	return w, nil
}

// Close closes idle connections.
func (w *Webhook) Close() { w.client.CloseIdleConnections() }

// Notify posts the letters once.
func (w *Webhook) Notify(ctx context.Context, letters []Letter) error {
	ctx, span := w.tracer.Start(ctx, "POST dead-letter webhook", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.Int("rollbackd.letters", len(letters))))
	defer span.End()
	err := w.post(ctx, letters)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

func (w *Webhook) post(ctx context.Context, letters []Letter) error {
	body, err := json.Marshal(struct {
		Letters []Letter `json:"letters"`
	}{letters})
	if err != nil {
		return fmt.Errorf("dead-letter webhook: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.o.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("dead-letter webhook: its URL cannot be requested")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "rollbackd")
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header)) // nothing without a span
	if w.o.Secrets != nil {
		if signed := Signature(w.o.Secrets(), body, w.now()); signed != "" {
			req.Header.Set(SignatureHeader, signed)
		}
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return fmt.Errorf("dead-letter webhook: %w", withoutURL(err))
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, webhookAnswer) // its status has said all
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("dead-letter webhook: it answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return nil
}

// withoutURL is what happened, without the address, which may hold a secret.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// Signature is the value of [SignatureHeader] for a body that is sent at this time, signed with each of the secrets
// that is not empty; it is empty without any.
func Signature(secrets []string, body []byte, at time.Time) string {
	seconds, sums := strconv.FormatInt(at.Unix(), 10), ""
	for _, secret := range secrets {
		if secret != "" {
			sums += ",v1=" + hex.EncodeToString(mac(secret, seconds, body))
		}
	}
	if sums == "" {
		return ""
	}
	return "t=" + seconds + sums
}

func mac(secret, seconds string, body []byte) []byte {
	m := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(m, seconds+".") // a hash takes everything
	_, _ = m.Write(body)
	return m.Sum(nil)
}

// ErrSignature says that a request was not signed with this secret, or too long ago.
var ErrSignature = errors.New("the signature does not fit")

// VerifySignature is for whoever receives a webhook: it checks the value of [SignatureHeader] against the body as it
// was received, and that it was signed at most tolerance before or after now; five minutes are usual. Within these a
// request that somebody recorded can be sent again: know a letter by its group, tag, key and replays. One of several
// signatures has to fit. An empty secret, which everybody knows, is refused.
func VerifySignature(secret, header string, body []byte, now time.Time, tolerance time.Duration) error {
	if secret == "" {
		return fmt.Errorf("%w: there is no secret to check it with", ErrSignature)
	}
	var seconds string
	var sums [][]byte
	for part := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "t":
			seconds = value
		case "v1":
			if sum, err := hex.DecodeString(value); err == nil {
				sums = append(sums, sum)
			}
		}
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: it has no time", ErrSignature)
	}
	if now.Sub(time.Unix(at, 0)).Abs() > tolerance {
		return fmt.Errorf("%w: it was made at %v", ErrSignature, time.Unix(at, 0).UTC())
	}
	for _, sum := range sums {
		if hmac.Equal(sum, mac(secret, seconds, body)) {
			return nil
		}
	}
	return ErrSignature
}
