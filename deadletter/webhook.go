package deadletter

import (
	"bytes"
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
)

// SignatureHeader holds "t=SECONDS,v1=HEX": when the request was signed, in seconds since 1970, and the HMAC-SHA256, with
// the shared secret as its key, of these seconds, a full stop and the body as it was sent. See [VerifySignature].
const SignatureHeader = "X-Rollbackd-Signature"

// WebhookOptions say where a webhook goes.
type WebhookOptions struct {
	// URL is http or https. What it holds besides the host (user, path, query) may be secret and is in no error.
	URL string
	// Secret signs the body; empty: unsigned.
	Secret string
	// Timeout bounds one request with its answer. Default 10s.
	Timeout time.Duration
}

// Webhook is a [Compensator] that posts new letters as JSON: {"letters":[…]}, each as [Letter] says. Only an answer of the
// class 2xx counts as told. A redirect does not: what was signed for one address must not go to another. Safe for many
// goroutines.
type Webhook struct {
	o      WebhookOptions
	client *http.Client
	now    func() time.Time
}

var _ Compensator = (*Webhook)(nil)

const (
	webhookTimeout = 10 * time.Second
	// webhookAnswer is how much of an answer is read, so that the connection can be used again.
	webhookAnswer = 64 << 10
)

// NewWebhook checks o. It connects to nothing.
func NewWebhook(o WebhookOptions) (*Webhook, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("dead-letter webhook: want a URL like https://example.com/dead-letters") // which may hold a secret
	}
	if o.Timeout <= 0 {
		o.Timeout = webhookTimeout
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxConnsPerHost = 2, 2
	return &Webhook{o: o, now: time.Now, client: &http.Client{
		Transport: transport, Timeout: o.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes idle connections.
func (w *Webhook) Close() { w.client.CloseIdleConnections() }

// Compensate posts the letters once.
func (w *Webhook) Compensate(ctx context.Context, letters []Letter) error {
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
	if w.o.Secret != "" {
		req.Header.Set(SignatureHeader, signature(w.o.Secret, body, w.now()))
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

func signature(secret string, body []byte, at time.Time) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	return "t=" + seconds + ",v1=" + hex.EncodeToString(mac(secret, seconds, body))
}

func mac(secret, seconds string, body []byte) []byte {
	m := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(m, seconds+".") // a hash takes everything
	_, _ = m.Write(body)
	return m.Sum(nil)
}

// ErrSignature says that a request was not signed with this secret, or too long ago.
var ErrSignature = errors.New("the signature does not fit")

// VerifySignature is for whoever receives a webhook: it checks the value of [SignatureHeader] against the body as it was
// received, and that it was signed at most tolerance before or after now; five minutes are usual. Within these a request
// that somebody recorded can be sent again: know a letter by its group, tag, key and replays.
func VerifySignature(secret, header string, body []byte, now time.Time, tolerance time.Duration) error {
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
