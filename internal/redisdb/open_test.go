package redisdb

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given each URL of testdata/urls.txt, then Open takes from it what stands below it, or refuses it and shows no
// password. -update rewrites that.
func TestOpenTakesTheModeFromTheURLAndRefusesWithoutShowingThePassword(t *testing.T) {
	t.Parallel()
	golden.Says(t, "testdata/urls.txt", func(raw string) string {
		client, err := Open(raw, Options{})
		if err != nil {
			assert.That(t, !strings.Contains(err.Error(), "cret"), "%s: %v", raw, err)
			return err.Error()
		}
		assert.OK(t, client.Close())
		p := require.Get(parseURL(raw))(t)
		return fmt.Sprintf("%T TLS %v, %q %q at %v/%d, cluster %v, master %q of %q %q", client, p.tls, p.Username,
			p.Password, p.Addrs, p.DB, p.IsClusterMode, p.MasterName, p.SentinelUsername, p.SentinelPassword)
	})
}

func TestOpenBoundsEveryStep(t *testing.T) {
	t.Parallel()
	client := require.Get(Open("rediss://cache", Options{Connections: 5}))(t)
	defer client.Close()
	o := client.(*redis.Client).Options()
	assert.That(t, o.ContextTimeoutEnabled, "contexts do not bound commands")
	for what, d := range map[string]time.Duration{
		"dial": o.DialTimeout, "read": o.ReadTimeout, "write": o.WriteTimeout, "pool": o.PoolTimeout,
	} {
		assert.That(t, d > 0 && d <= time.Second, "%s timeout is %v, want at most a second", what, d)
	}
	assert.That(t, o.PoolSize == 5 && o.MaxRetries == 1 && o.DialerRetries == 1,
		"pool of %d, %d retries, %d dials, want 5, 1, 1", o.PoolSize, o.MaxRetries, o.DialerRetries)
	if o.Protocol != 2 || !o.DisableIdentity || o.MaintNotificationsConfig.Mode != maintnotifications.ModeDisabled {
		t.Error("the handshake says more than an old server or a proxy may understand")
	}
	assert.That(t, o.PipelinePoolSize < 0, "pipelines have a pool of their own: more connections than were allowed")
}

func TestOpenNamesItsConnections(t *testing.T) {
	t.Parallel()
	client := require.Get(Open(stack.Redis(t), Options{Name: "rollbackd höst/17"}))(t)
	defer client.Close()
	assert.Is(t, require.Get(client.ClientGetName(t.Context()).Result())(t), "rollbackd:h-st/17", "CLIENT GETNAME")
}
