package rabbit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// ErrClassic says that a main queue that is taken as it is has the type classic: such a queue counts no deliveries and
// dead-letters at most once, so it cannot keep the promise.
var ErrClassic = errors.New("is a classic queue, which counts no deliveries and dead-letters at most once: give " +
	"rollbackd a queue of its own, with another ROLLBACKD_QUEUE and ROLLBACKD_TOPOLOGY=declare, and carry the messages " +
	"over with `rollbackd move`")

// ErrNoMain says that there is no main queue to take as it is.
var ErrNoMain = errors.New("does not exist, and with ROLLBACKD_TOPOLOGY=check nobody makes it: make it, as a quorum " +
	"queue, or let rollbackd declare it")

const (
	codeNotImplemented = amqp.NotImplemented
	classicType        = "classic"
	// managementTimeout bounds one question to the management API, and managementAnswer its answer in bytes.
	managementTimeout = 10 * time.Second
	managementAnswer  = 1 << 20
	// policyPriority is higher than what people give their own policies. Only one policy applies to a queue.
	policyPriority = 100
)

// policy is what a queue that is taken as it is needs to be told: the arguments that the main queue is declared with
// otherwise, under their names in a policy.
func (t TopologyConfig) policy() map[string]any {
	definition := map[string]any{}
	for name, value := range t.mainArguments() {
		if name != amqp.QueueTypeArg {
			definition[strings.TrimPrefix(name, "x-")] = value
		}
	}
	return definition
}

// Policy is what gives the main queue what it needs when it is taken as it is. Only one policy applies to a queue, so
// it also keeps off those with wider patterns and lower priorities.
type Policy struct {
	Name       string         `json:"name"`
	Pattern    string         `json:"pattern"`
	Priority   int            `json:"priority"`
	Definition map[string]any `json:"definition"`
}

// MainPolicy is the policy for the main queue. Where rollbackd declares the queue, its arguments say the same.
func (t TopologyConfig) MainPolicy() Policy {
	return Policy{"rollbackd." + t.Queue, "^" + regexp.QuoteMeta(t.Queue) + "$", policyPriority, t.policy()}
}

// PolicyCommand is the command, quoted for a shell, that gives the main queue what it needs when it is taken as it is.
// version is the broker's: before 3.12 a policy cannot be for quorum queues alone.
func (t TopologyConfig) PolicyCommand(version, vhost string) string {
	p := t.MainPolicy()
	definition, _ := json.Marshal(p.Definition) // keys sorted, text and integers only: it cannot fail
	apply := "quorum_queues"
	if n := versionNumber(version); n != 0 && n < 3_012 {
		apply = "queues"
	}
	return fmt.Sprintf("rabbitmqctl set_policy -p %s --priority %d --apply-to %s %s %s %s", shellWord(vhost),
		p.Priority, apply, shellWord(p.Name), shellWord(p.Pattern), shellWord(string(definition)))
}

func shellWord(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// QueueFacts are what the management API tells of a queue.
type QueueFacts struct {
	Type      string         // quorum, classic, stream
	Arguments map[string]any // as it was declared
	Policy    map[string]any // what policies say of it, an operator's too
}

// AskManagement asks RabbitMQ's management API about a queue. api is its address, http or https, with user and
// password in it if it wants any; neither is in an error. encryption, if not nil, is for https.
func AskManagement(
	ctx context.Context, api, vhost, queue string, encryption *certs.Handshake,
) (facts QueueFacts, err error) {
	where := "its address"
	defer func() {
		if err != nil {
			err = fmt.Errorf("ask RabbitMQ's management API at %s about queue %q: %w", where, queue, err)
		}
	}()
	u, err := url.Parse(api)
	if err != nil {
		return facts, errors.New("the address is no URL") // what url.Parse says may quote a password
	}
	where, u.Path = u.Host, "/"+strings.TrimPrefix(u.Path, "/")
	u = u.JoinPath("api/queues", url.PathEscape(vhost), url.PathEscape(queue))
	u.RawQuery = ""
	ctx, cancel := context.WithTimeoutCause(ctx, managementTimeout, fmt.Errorf("no answer in %v", managementTimeout))
	defer cancel()
	r := (&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}}).WithContext(ctx)
	if u.User != nil {
		password, _ := u.User.Password()
		r.SetBasicAuth(u.User.Username(), password)
	}
	// Without a client, no redirect carries the password elsewhere; nothing outlives the question.
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	if encryption != nil {
		transport.TLSClientConfig = encryption.Config
	}
	answer, err := transport.RoundTrip(r)
	switch {
	case err != nil && ctx.Err() != nil:
		return facts, context.Cause(ctx)
	case err != nil && encryption != nil:
		return facts, encryption.Explain(err)
	case err != nil:
		return facts, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return facts, fmt.Errorf("it answers %s", answer.Status)
	}
	var got struct {
		Type      string          `json:"type"`
		Arguments json.RawMessage `json:"arguments"`
		Policy    json.RawMessage `json:"effective_policy_definition"`
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, managementAnswer)).Decode(&got); err != nil {
		return facts, fmt.Errorf("its answer is no JSON: %w", err)
	}
	if got.Type == "" {
		return facts, errors.New("its answer names no type of queue: is it the management API?")
	}
	return QueueFacts{got.Type, object(got.Arguments), object(got.Policy)}, nil
}

// object reads a JSON object. RabbitMQ writes an empty one as [] in some versions.
func object(raw json.RawMessage) map[string]any {
	var o map[string]any
	if json.Unmarshal(raw, &o) != nil {
		return nil
	}
	return o
}

// Flaws says what is amiss with a main queue that is taken as it is, each in a sentence of its own; none: it does what
// a declared one does.
func (t TopologyConfig) Flaws(f QueueFacts) []string {
	if f.Type != amqp.QueueTypeQuorum {
		return []string{fmt.Sprintf("it is of type %s, not quorum", f.Type)}
	}
	var flaws []string
	wanted := t.policy()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		want := wanted[name]
		has, there, fixed := f.effective(name)
		limit, _ := has.(float64) // as JSON has numbers
		least, isLimit := want.(int64)
		is := "is not set"
		switch {
		case there && (has == want || isLimit && limit >= float64(least)):
			continue
		case fixed:
			is = fmt.Sprintf("is %#v by an argument of the queue, which no policy changes", has)
		case there:
			is = fmt.Sprintf("is %#v", has)
		}
		flaws = append(flaws, fmt.Sprintf("%s %s, %#v is needed: %s", name, is, want, without[name]))
	}
	for _, name := range []string{"message-ttl", "expires"} {
		if has, there, _ := f.effective(name); there {
			flaws = append(flaws, fmt.Sprintf("%s is %v: messages would vanish", name, has))
		}
	}
	return flaws
}

// without says what happens without a part of the policy.
var without = map[string]string{
	"dead-letter-exchange":    "what RabbitMQ gives up is dropped, or goes where nobody files it",
	"dead-letter-routing-key": "what RabbitMQ gives up does not reach the backstop, so nobody files it",
	"dead-letter-strategy":    "what RabbitMQ gives up may be lost on its way",
	"delivery-limit":          "a message that ends connections comes for ever, or innocent ones are given up too soon",
	"overflow":                "a queue that is full drops messages, and dead-letters at most once",
}

// effective is what holds of a policy's part: an argument of the queue comes before it, and of two numbers the lower
// one holds. fixed: the argument holds.
func (f QueueFacts) effective(name string) (value any, there, fixed bool) {
	byPolicy, inPolicy := f.Policy[name]
	argument, isArgument := f.Arguments["x-"+name]
	if !isArgument {
		return byPolicy, inPolicy, false
	}
	a, numberA := argument.(float64)
	p, numberP := byPolicy.(float64)
	if inPolicy && numberA && numberP && p < a {
		return byPolicy, true, false
	}
	return argument, true, true
}

// RefuseClassic returns ErrClassic if the main queue is a classic one. AMQP does not tell the type of a queue, so a
// consumer is asked for that some types refuse, with connections of its own. An error that is not ErrClassic means that
// it could not be found out.
//
//   - Up to RabbitMQ 4.2 a consumer under a limit for its whole channel is refused by every type but classic, together
//     with its connection. A classic queue gives a message out for that moment. A broker that is told to permit no such
//     limit (deprecated_features.permit.global_qos) refuses nobody, and a message of a quorum queue would be charged
//     with a delivery. So the backstop, mostly empty, is tried first: only where that refuses is the main queue asked.
//   - From 4.3 on there are no such limits. Instead a timeout is asked for that makes no sense: nobody takes it, and a
//     classic queue, whose consumers have none, names its type. Nothing is delivered. A name so long that the broker
//     cuts its text off hides the type.
func RefuseClassic(ctx context.Context, cfg Config, t TopologyConfig) error {
	classic := fmt.Errorf("queue %q %w", t.Queue, ErrClassic)
	c, err := Dial(ctx, cfg)
	if err != nil {
		return err
	}
	if versionNumber(c.ServerVersion()) >= 4_003 {
		err := tryConsumer(ctx, c, t.Queue, false, amqp.Table{"x-consumer-timeout": "none"})
		if b, ok := errors.AsType[*BrokerError](err); !ok || b.Code != codePrecondition {
			return err
		} else if strings.HasSuffix(b.Text, ofClassicType) {
			return classic
		}
		return nil
	}
	backstop := tryConsumer(ctx, c, BackstopQueue(t.Queue), true, nil)
	if !hasCode(backstop, codeNotImplemented) && !hasCode(backstop, codeNotFound) {
		return backstop
	}
	if c, err = Dial(ctx, cfg); err != nil {
		return err
	}
	err = tryConsumer(ctx, c, t.Queue, true, nil)
	switch {
	case hasCode(err, codeNotImplemented):
		return nil
	case err != nil:
		return err
	case hasCode(backstop, codeNotFound): // nothing shows that this broker refuses anybody
		return backstop
	}
	return classic
}

// ofClassicType is the end of a refusal by a classic queue of 4.3 and later, where the text alone tells.
const ofClassicType = " of queue type rabbit_classic_queue"

// tryConsumer returns what the broker has against a consumer. It ends the connection, which gives back what came.
func tryConsumer(ctx context.Context, c *Conn, queue string, limitChannel bool, args amqp.Table) error {
	defer func() { _ = c.Close() }() // it has told what it could
	return c.openChannel(ctx, fmt.Sprintf("find out the type of queue %q", queue), func(ch *amqp.Channel) error {
		if limitChannel {
			if err := ch.Qos(1, 0, limitChannel); err != nil {
				return err
			}
		}
		_, err := ch.Consume(queue, ConsumerTag(0)+"/type", !autoAck, !exclusive, !noLocal, !noWait, args)
		return err
	})
}

// Vhost is the name of the connection's virtual host.
func (c *Conn) Vhost() string { return c.amqp.Config.Vhost }

// TakenMain is what was found out about a main queue that is taken as it is.
type TakenMain struct {
	Seen    bool     // the management API told
	Flaws   []string // what is amiss, as far as was seen
	Command string   // that gives it the policy it needs
}

// forAPI is the encryption for the management API: with an https address, what the connection itself is checked with.
// The name of the server is the address's own, but for the same host.
func (c *Conn) forAPI(api string) (*certs.Handshake, error) {
	u, err := url.Parse(api)
	if err != nil || u.Scheme != "https" || !c.to.encrypted() {
		return nil, nil // the system's list, if any
	}
	peer := c.to.peer(c.cfg)
	if u.Hostname() != peer.Host {
		peer.ServerName, peer.Host = "", u.Hostname()
		if peer.Base != nil {
			peer.Base = peer.Base.Clone()
			peer.Base.ServerName = ""
		}
	}
	return c.cfg.Certs.Begin(peer)
}

// LookAtMain looks at a main queue that is taken as it is, with the management API at api, or without one if that is
// empty. ErrClassic says that it cannot be used at all; another error, that it could not be looked at.
func LookAtMain(ctx context.Context, cfg Config, c *Conn, api string, t TopologyConfig) (TakenMain, error) {
	found := TakenMain{Command: t.PolicyCommand(c.ServerVersion(), c.Vhost())}
	if api == "" {
		return found, RefuseClassic(ctx, cfg, t)
	}
	encryption, err := c.forAPI(api)
	var facts QueueFacts
	if err == nil {
		facts, err = AskManagement(ctx, api, c.Vhost(), t.Queue, encryption)
	}
	if err != nil {
		return found, errors.Join(err, RefuseClassic(ctx, cfg, t))
	}
	if facts.Type == classicType {
		return found, fmt.Errorf("queue %q %w", t.Queue, ErrClassic)
	}
	found.Seen, found.Flaws = true, t.Flaws(facts)
	return found, nil
}
