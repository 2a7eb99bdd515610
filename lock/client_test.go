package lock

import (
	"net/url"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestRefusedLoginDoesNotShowThePassword(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(stack.OwnRedis(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("nobody", "s3cret")
	l := newLock(t, u.String(), Options{OnError: Pause})
	_, err = l.Lock(t.Context(), "a", l.names("one"))
	_, shown := l.Show(t.Context(), l.names("one")[0])
	for what, err := range map[string]error{"Lock": err, "Show": shown, "probe": l.nodes[0].Probe(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "WRONGPASS") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s = %v, want the refused login without the password", what, err)
		}
	}
}
