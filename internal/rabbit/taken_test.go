package rabbit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a main queue that was there before with other arguments, when it is taken as it is, then nothing of it is
// declared or compared, no exchange is made, and the queues beside it are.
func TestAMainQueueIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	c := dial(t, b.URL)
	topo := topology(b)
	topo.TakeMain = true
	_, err := rabbit.Declare(t.Context(), c, topo)
	assert.Error(t, err, rabbit.ErrNoMain, "without the queue")
	assert.Is(t, b.Exists(topo.Queue), false, "the main queue was made")
	b.DeclareQueue(topo.Queue, rabbit.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(7), "x-max-length": int64(1000),
	})
	declare(t, c, topo)
	for _, q := range topo.Queues() {
		assert.That(t, b.Exists(q), "queue %s is missing", q)
	}
	for _, one := range require.Get(rabbit.Inspect(t.Context(), c, topo))(t) {
		assert.That(t, one.Err == nil && !one.Missing && one.Taken == (one.Queue == topo.Queue) && one.Queue != "",
			"inspected %+v", one)
	}
	assert.Is(t, len(require.Get(rabbit.Missing(t.Context(), c, topo))(t)), 0, "missing")
}

// Given main queues of each type, with messages or not, when their type is asked for, then only a classic one is
// refused, and what was in it is there afterwards.
func TestOnlyAClassicMainQueueIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args    rabbit.Table
		classic bool
	}{
		"classic":          {nil, true},
		"classic priority": {rabbit.Table{"x-max-priority": int32(5)}, true},
		"quorum":           {rabbit.Table{"x-queue-type": "quorum"}, false},
		"quorum, others":   {rabbit.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1)}, false},
	} {
		b := stack.AMQP(t)
		topo := topology(b)
		topo.TakeMain = true
		b.DeclareQueue(topo.Queue, tt.args)
		declare(t, dial(t, b.URL), topo)
		b.Publish("", topo.Queue, stack.Message{Body: []byte("b")})
		for range 2 {
			err := rabbit.RefuseClassic(t.Context(), config(b.URL), topo)
			assert.That(t, errors.Is(err, rabbit.ErrClassic) == tt.classic && (tt.classic || err == nil), "%s: %v", name, err)
			assert.That(t, !tt.classic || strings.Contains(fmt.Sprint(err), "rollbackd move"), "%v does not say what to do", err)
		}
		poll.Until(t, name+": its message is there", func() bool { return b.Depth(topo.Queue) == 1 })
	}
}

// Given a quorum queue of a shop and the command that is printed for it, when a shell runs that, then the management
// API finds nothing amiss, and what RabbitMQ gives up arrives in the backstop.
func thePrintedPolicyDoesWhatTheArgumentsDo(t *testing.T, server *stack.Server) {
	b := server.Broker(t)
	topo := topology(b)
	topo.TakeMain, topo.Queue = true, b.Name("the shop's [own]+queue")
	b.DeclareQueue(topo.Queue, rabbit.Table{"x-queue-type": "quorum"})
	other := topo.Queue + ".x"
	b.DeclareQueue(other, rabbit.Table{"x-queue-type": "quorum"})
	c := dial(t, b.URL)
	declare(t, c, topo)
	before, err := rabbit.LookAtMain(t.Context(), config(b.URL), c, server.HTTP(), topo)
	assert.That(t, err == nil && before.Seen && len(before.Flaws) == 5,
		"without a policy: %+v, %v; want five things missing", before, err)
	words := require.Get(exec.CommandContext(t.Context(), "sh", "-c", "printf '%s\\n' "+before.Command).Output())(t)
	args := strings.Split(strings.TrimSuffix(string(words), "\n"), "\n")
	out, err := server.Ctl(args[1:]...)
	require.That(t, err == nil, "%q: %v, %s", args, err, out)
	poll.Until(t, "the policy holds", func() bool {
		after, err := rabbit.LookAtMain(t.Context(), config(b.URL), c, server.HTTP(), topo)
		return err == nil && after.Seen && len(after.Flaws) == 0
	})
	facts, err := rabbit.AskManagement(t.Context(), server.HTTP(), c.Vhost(), other, nil)
	assert.That(t, err == nil && len(facts.Policy) == 0, "another queue has %+v, %v; want no policy", facts, err)
	p := publisher(t, config(b.URL))
	publishN(t, p, topo.Queue, 1)
	b.Fail(topo.Queue, rabbit.DeliveryLimit+1)
	collect(t, consume(t, c, rabbit.BackstopQueue(topo.Queue), 1), 1)
	assert.OK(t, rabbit.RefuseClassic(t.Context(), config(b.URL), topo), "a quorum queue:")
}

func TestFlawsOfAMainQueueThatIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	topo := rabbit.TopologyConfig{Exchange: "e", Queue: "q", TakeMain: true}
	good := func() map[string]any {
		return map[string]any{
			"dead-letter-exchange": "", "dead-letter-routing-key": "q.backstop", "dead-letter-strategy": "at-least-once",
			"delivery-limit": 200.0, "overflow": "reject-publish",
		}
	}
	for name, tt := range map[string]struct {
		kind             string
		policy, argument map[string]any
		want             []string // what each flaw contains, in order
	}{
		"by policy":    {"quorum", nil, nil, nil},
		"classic":      {"classic", nil, nil, []string{"type classic"}},
		"stream":       {"stream", nil, nil, []string{"type stream"}},
		"higher limit": {"quorum", map[string]any{"delivery-limit": 500.0}, nil, nil},
		"lower limit": {"quorum", map[string]any{"delivery-limit": 20.0}, nil,
			[]string{"delivery-limit is 20, 200 is needed"}},
		"lower argument": {"quorum", nil, map[string]any{"x-delivery-limit": 20.0},
			[]string{"delivery-limit is 20 by an argument"}},
		"higher argument": {"quorum", nil, map[string]any{"x-delivery-limit": 1000.0}, nil},
		"by arguments":    {"quorum", map[string]any{"overflow": nil}, map[string]any{"x-overflow": "reject-publish"}, nil},
		"own DLX": {"quorum", nil, map[string]any{"x-dead-letter-exchange": "shop.dlx"},
			[]string{`dead-letter-exchange is "shop.dlx" by an argument of the queue, which no policy changes, "" is needed`}},
		"missing": {"quorum", map[string]any{"dead-letter-exchange": nil, "overflow": nil}, nil,
			[]string{`dead-letter-exchange is not set, "" is needed`, "overflow is not set"}},
		"elsewhere": {"quorum", map[string]any{"dead-letter-routing-key": "x"}, nil, []string{`"x", "q.backstop" is needed`}},
		"vanish": {"quorum", map[string]any{"message-ttl": 5.0}, map[string]any{"x-expires": 7.0},
			[]string{"message-ttl is 5", "expires is 7"}},
	} {
		policy := good()
		for k, v := range tt.policy {
			if policy[k] = v; v == nil {
				delete(policy, k)
			}
		}
		flaws := topo.Flaws(rabbit.QueueFacts{Type: tt.kind, Arguments: tt.argument, Policy: policy})
		assert.That(t, slices.EqualFunc(flaws, tt.want, strings.Contains), "%s: %q, want %q", name, flaws, tt.want)
	}
}

func TestPolicyCommandIsQuotedForAShell(t *testing.T) {
	t.Parallel()
	topo := rabbit.TopologyConfig{Queue: `it's.a+b`}
	const definition = `{"dead-letter-exchange":"","dead-letter-routing-key":"it'\''s.a+b.backstop",` +
		`"dead-letter-strategy":"at-least-once","delivery-limit":200,"overflow":"reject-publish"}`
	for version, apply := range map[string]string{
		"3.10.8": "queues", "3.12.0": "quorum_queues", "4.0.5": "quorum_queues", "": "quorum_queues",
	} {
		want := `rabbitmqctl set_policy -p '/' --priority 100 --apply-to ` + apply +
			` 'rollbackd.it'\''s.a+b' '^it'\''s\.a\+b$' '` + definition + `'`
		assert.Is(t, topo.PolicyCommand(version, "/"), want, "RabbitMQ %s", version)
	}
}

// Given a management API that is away, refuses, redirects or answers nonsense, then the error says so and holds no
// password, and the password goes nowhere else.
func TestAManagementAPIThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect was followed, with %q", r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	var status int
	var body, asked string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		asked = r.URL.EscapedPath() + " " + user + " " + password
		w.Header().Set("Location", elsewhere.URL)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	defer api.Close()
	u := require.Get(url.Parse(api.URL + "/prefix/"))(t)
	u.User = url.UserPassword("us/er", "hunter2?")
	for _, tt := range []struct {
		status     int
		body, says string
	}{{401, "{}", "401"}, {301, "", "301"}, {200, "<html>", "no JSON"}, {200, "{}", "names no type"}, {404, "", "404"}} {
		status, body = tt.status, tt.body
		_, err := rabbit.AskManagement(t.Context(), u.String(), "/a b", "q/1", nil)
		assert.That(t, err != nil && strings.Contains(err.Error(), tt.says) && !strings.Contains(err.Error(), "hunter2"),
			"%d %s: %v; want an error with %q and no password", tt.status, tt.body, err, tt.says)
	}
	assert.Is(t, asked, "/prefix/api/queues/%2Fa%20b/q%2F1 us/er hunter2?", "asked")
	status, body = 200, `{"type":"quorum","arguments":{"x-queue-type":"quorum"},"effective_policy_definition":[]}`
	facts, err := rabbit.AskManagement(t.Context(), u.String(), "/", "q", nil)
	text, _ := json.Marshal(facts)
	assert.That(t, err == nil && facts.Type == "quorum" && len(facts.Policy) == 0, "%s, %v", text, err)
	for _, bad := range []string{"http://u:hunter2@127.0.0.1:1", "http://u:hunter2%@h"} {
		_, err := rabbit.AskManagement(t.Context(), bad, "/", "q", nil)
		assert.That(t, err != nil && !strings.Contains(err.Error(), "hunter2"), "%v; want an error without the password", err)
	}
}
