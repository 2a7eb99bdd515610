package rabbit_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a broker behind TLS, when a message with unreadable headers comes, then it arrives with a mark as it does
// without TLS; and a certificate that nobody vouches for ends the dial.
func theWalkerSeesPlainTextUnderTLS(t *testing.T, server *stack.Server, authority string) {
	b := server.Broker(t)
	u := require.Get(url.Parse(b.URL))(t)
	u.Scheme, u.Host = "amqps", server.TLSAddr()
	if _, err := rabbit.Dial(t.Context(), config(u.String())); err == nil ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("Dial without the certificate's authority = %v", err)
	}
	u.RawQuery = url.Values{"cacertfile": {authority}, "heartbeat": {"5"}}.Encode()
	c := dial(t, u.String())
	q := b.Name("main")
	b.DeclareQueue(q, quorum(nil))
	m := stack.RawMessage{Key: q, MessageID: "id", Headers: stack.UnreadableHeaders("m")[0].Entries, Body: []byte("b")}
	require.OK(t, dialRaw(t, b.URL).Publish(m))
	publishN(t, publisher(t, config(u.String())), q, 1)
	got := collect(t, consume(t, c, q, 10), 2)
	if _, ok := rabbit.ReadUnreadable(got[0].Headers); !ok || got[0].MessageID != "id" || got[1].MessageID != "0" {
		t.Errorf("over TLS came %+v", got)
	}
}
