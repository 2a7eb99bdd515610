package wire

import (
	"regexp"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Sending is what the relay of an outbox tells of a message: when it was put there, was due, and was sent.
type Sending struct{ Put, Due, Sent time.Time }

// ReadSending reads the headers of a message; the zero Sending of one that did not come from an outbox.
func ReadSending(h rabbit.Table) Sending {
	if _, came := h[rabbit.HeaderPutAt]; came {
		return sendingIn(h)
	}
	return Sending{}
}

func sendingIn(h rabbit.Table) (s Sending) {
	for name, at := range map[string]*time.Time{
		rabbit.HeaderPutAt: &s.Put, HeaderPublishedAt: &s.Due, rabbit.HeaderSentAt: &s.Sent,
	} {
		ms, _ := rabbit.Int(h[name])
		*at = plausible(time.UnixMilli(ms))
	}
	if s.Put.IsZero() || s.Due.IsZero() || s.Sent.IsZero() {
		return Sending{}
	}
	return s
}

// String says it for the remark of a row whose message is applied and keeps nothing else; "" for the zero Sending.
func (s Sending) String() string {
	if s.Put.IsZero() {
		return ""
	}
	return "put into the outbox " + writeTime(s.Put) + ", due " + writeTime(s.Due) + ", sent " + writeTime(s.Sent)
}

var sendingText = regexp.MustCompile(`^put into the outbox (\S+), due (\S+), sent (\S+)$`)

// SendingOf reads what String has written.
func SendingOf(remark string) (s Sending, ok bool) {
	m := sendingText.FindStringSubmatch(remark)
	if m == nil {
		return s, false
	}
	s = Sending{readTime(m[1]), readTime(m[2]), readTime(m[3])}
	return s, !s.Put.IsZero()
}
