package redisdb

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestOpenTakesTheModeFromTheURL(t *testing.T) {
	t.Parallel()
	type leads struct {
		tls, cluster         bool
		user, password       string
		addrs                []string
		db                   int
		master, sUser, sPass string
	}
	for raw, want := range map[string]leads{
		"redis://cache":                    {addrs: []string{"cache:6379"}},
		"redis://cache:6380/3":             {addrs: []string{"cache:6380"}, db: 3},
		"redis://cache/":                   {addrs: []string{"cache:6379"}},
		"redis://[::1]:6380":               {addrs: []string{"[::1]:6380"}},
		"redis://[::1]":                    {addrs: []string{"[::1]:6379"}},
		"rediss://app:s3%40%2Fcret@cache":  {tls: true, user: "app", password: "s3@/cret", addrs: []string{"cache:6379"}},
		"redis://:s3+cret@cache":           {password: "s3+cret", addrs: []string{"cache:6379"}},
		"redis://one/?cluster=true":        {cluster: true, addrs: []string{"one:6379"}},
		"redis://a:1,b,a:1/0?cluster=true": {cluster: true, addrs: []string{"a:1", "b:6379"}},
		"redis://u:p@a,b:7/2?master=m&sentinel_user=su&sentinel_password=sp": {
			user: "u", password: "p", addrs: []string{"a:26379", "b:7"}, db: 2, master: "m", sUser: "su", sPass: "sp",
		},
	} {
		p, err := parseURL(raw)
		got := leads{p.tls, p.IsClusterMode, p.Username, p.Password, p.Addrs, p.DB, p.MasterName, p.SentinelUsername,
			p.SentinelPassword}
		d := cmp.Diff(want, got, cmp.AllowUnexported(leads{}))
		assert.That(t, err == nil && d == "", "%s: %v (-want +got):\n%s", raw, err, d)
		client, err := Open(raw, Options{})
		if err != nil {
			t.Errorf("Open(%s) = %v", raw, err)
			continue
		}
		_, cluster := client.(*redis.ClusterClient)
		assert.That(t, cluster == want.cluster, "Open(%s) made a %T", raw, client)
		assert.OK(t, client.Close())
	}
}

func TestOpenRefusesWithoutShowingThePassword(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                                         "redis://",
		"cache:6379":                               "redis://",
		"http://u:s3cret@cache":                    "redis://",
		"redis://":                                 "address 1 of 1",
		"redis://u:s3cret@":                        "address 1 of 1",
		"redis://u:s3cret@a:0":                     "address 1 of 1",
		"redis://u:s3cret@a:99999":                 "address 1 of 1",
		"redis://u:s3cret@a,,b?cluster=true":       "address 2 of 3",
		"redis://u:s3cret@a,b":                     "several addresses",
		"redis://u:s3cret@a/x":                     "database number",
		"redis://u:s3cret@a/-1":                    "database number",
		"redis://u:s3/cret@a":                      "address 1 of 1",
		"redis://u:s?3cret@a":                      "unknown parameter",
		"redis://u:s3cret%zz@a":                    "percent-encoded",
		"redis://u:1#s3cret@a":                     "percent-encoded",
		"redis://s3cret%zz:x@a":                    "percent-encoded",
		"redis://u:s3cret@a?x=%zz":                 "percent-encoded",
		"redis://u:s3cret@a?cluster=s3cret":        "neither true nor false",
		"redis://u:s3cret@a?pool_size=3":           "unknown parameter",
		"redis://u:s3cret@a?cluster=1&master=m":    "exclude",
		"redis://u:s3cret@a/1?cluster=true":        "database 0",
		"redis://u:s3cret@a?sentinel_password=s3c": "want master",
	} {
		_, err := Open(raw, Options{})
		if err == nil {
			t.Errorf("Open(%q) succeeded", raw)
			continue
		}
		assert.That(t, strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "cret"),
			"Open(%q) = %v, want it to say %q and no password", raw, err, want)
	}
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
