package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

const secret = "s3cr3t"

// deaf accepts connections and says nothing, like a frozen broker.
func deaf(t *testing.T) string {
	t.Helper()
	l := require.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() }) // the kernel's backlog takes the connections
	return l.Addr().String()
}

func TestDialTriesTheNextURL(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	dead := "amqp://u:" + secret + "@127.0.0.1:1/vhost"
	mute := "amqp://u:" + secret + "@" + deaf(t) + "/"
	cfg := config(b.URL)
	cfg.URLs = []string{dead, b.URL, mute}
	cfg.DialTimeout = 2 * time.Second
	for range 5 { // the first one is chosen at random
		c := require.Get(rabbit.Dial(t.Context(), cfg))(t)
		if c.Where() != rabbit.Where(b.URL) || c.ServerVersion() == "" {
			t.Errorf("connected to %s, version %q", c.Where(), c.ServerVersion())
		}
		require.OK(t, c.Close())
		assert.OK(t, c.Close(), "second Close:")
		assert.Error(t, c.Err(), rabbit.ErrClosed, "Err after Close")
	}
	cfg.URLs = []string{dead, mute}
	_, err := rabbit.Dial(t.Context(), cfg)
	if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "127.0.0.1:1/vhost") ||
		!strings.Contains(err.Error(), "no answer in 2s") {
		t.Errorf("Dial = %v", err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cfg := config("amqp://" + deaf(t) + "/")
	cause := errors.New("time to stop")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
	defer cancel()
	start := time.Now()
	if _, err := rabbit.Dial(ctx, cfg); !errors.Is(err, cause) || time.Since(start) > 5*time.Second {
		t.Errorf("Dial = %v after %v", err, time.Since(start))
	}
}

func TestWrongPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	u, err := url.Parse(b.URL)
	require.OK(t, err)
	u.User = url.UserPassword("nobody", secret+"@/")
	_, err = rabbit.Dial(t.Context(), config(u.String()))
	if err == nil || strings.Contains(err.Error(), secret) ||
		!strings.Contains(err.Error(), "username or password not allowed") {
		t.Errorf("Dial = %v", err)
	}
}

func TestConnectionBearsItsName(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	dial(t, b.URL)
	want := rabbit.ConnectionName("test")
	// Connections of other tests may be closing, and have no properties.
	got := b.Eval(fmt.Sprintf(`[] =/= [P || [{client_properties, P}] <- `+
		`rabbit_networking:connection_info_all([client_properties]), is_list(P), lists:member({<<"connection_name">>, `+
		`longstr, <<%q>>}, P)]`, want))
	assert.Is(t, got, "true", "no connection named %q", want)
}

func TestURLErrorsExplainWithoutQuoting(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"", "localhost", "http://u:" + secret + "@h/", "amqp://u:" + secret + "%zz@h/", "amqp://u:" + secret + "/x@h/v",
		"amqp://u:12/" + secret + "@h/v", "amqp://u:12?" + secret + "@h/v", "amqp://u:12#" + secret + "@h/v", "amqp://u:" +
			secret + " x@h/v",
		"amqp://u:" + secret + "@h:0/v", "amqp://u:" + secret + "@h:99999/v", "amqp://u:" + secret + "@h/v?heartbeat=often",
		"amqp://u:" + secret + "[@h/v",
	} {
		err := rabbit.CheckURL(raw)
		if err == nil {
			t.Errorf("%q was accepted", raw)
			continue
		}
		if strings.Contains(err.Error(), secret) || strings.Contains(rabbit.Where(raw), secret) {
			t.Errorf("%q: the error shows the password: %v, %s", raw, err, rabbit.Where(raw))
		}
		_, err = rabbit.Dial(t.Context(), rabbit.Config{URLs: []string{"amqp://h", raw}})
		if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "URL 2 of 2") {
			t.Errorf("Dial = %v", err)
		}
	}
	for raw, want := range map[string]string{
		"amqp://": "localhost:5672/", "amqps://u:p%40%2F@h/v%2Fw": "h:5671/v/w", "amqp://h:1/": "h:1/",
		"amqp://u:p@[::1]:7/v?heartbeat=5": "[::1]:7/v",
	} {
		if err := rabbit.CheckURL(raw); err != nil || rabbit.Where(raw) != want {
			t.Errorf("%s: %v, %s; want %s", raw, err, rabbit.Where(raw), want)
		}
	}
	if _, err := rabbit.Dial(t.Context(), rabbit.Config{}); err == nil {
		t.Error("Dial without a URL")
	}
}
