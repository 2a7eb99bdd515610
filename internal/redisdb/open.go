// Package redisdb is how rollbackd connects to Redis: [Open] makes a client of a URL, whatever mode and certificates
// the URL asks for.
//
// What lives here: what is true of Redis and its client, whatever is kept there. What must not: locks and markers.
package redisdb

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// Options says how Open connects.
type Options struct {
	// Name is what CLIENT LIST shows, "rollbackd host/pid". Redis refuses blanks in it: they become colons.
	Name string
	// Connections is the most that are opened, to each node; lanes and one for the renewer. 0: 8.
	Connections int
	// CurrentURL, if set, is asked before each connection for the URL as it is now. Only user and password are taken from
	// it: they may have changed. What cannot be parsed changes nothing, and sentinels keep their password.
	CurrentURL func() string
	// Opened, if set, is called for each connection that stands.
	Opened func()
	// TLS encrypts, for a rediss URL that names no certificates. Nil: what the URL names.
	TLS *tls.Config
	// Warn, if set, is told why certificates that the URL names cannot be read again; the former ones stay in use.
	Warn func(error)
	// Certs, if set, makes what the URL's certificates are used for, and Warn is not called.
	Certs *certs.Store
}

// One exchange with Redis takes well under a millisecond. What takes longer than this is a Redis that is away, and the
// consumer log can do without.
const (
	redisTimeout = 500 * time.Millisecond
	redisRetries = 1 // repetitions of a pipeline whose connection died; every command of the lock may be sent twice
	// findTimeout is the client's for all that it takes to find a master and connect to it. It asks one sentinel, and all
	// of them only when that one has had time to fail, which are four exchanges. With less it would never leave a sentinel
	// that stands still, or whose host is gone. Nobody waits for it: the call that wanted the connection has its own end.
	findTimeout = 5 * time.Second
)

// Open returns a client for the URL; package lock says what that may hold. It connects at first use, so it succeeds
// while Redis is away, and reads certificates.
func Open(rawURL string, o Options) (redis.UniversalClient, error) {
	c, err := options(rawURL, o)
	if err != nil {
		return nil, err
	}
	return redis.NewUniversalClient(c), nil
}

func options(rawURL string, o Options) (*redis.UniversalOptions, error) {
	u, err := parseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("redis URL: %w", err)
	}
	c := &u.UniversalOptions
	c.ClientName = clientName(o.Name)
	c.ContextTimeoutEnabled = true // without it a context does not bound a command
	c.DialTimeout, c.ReadTimeout, c.WriteTimeout, c.PoolTimeout = redisTimeout, redisTimeout, redisTimeout, redisTimeout
	c.DialerRetries, c.MaxRetries, c.MaxRetryBackoff = 1, redisRetries, 50*time.Millisecond
	c.PoolSize = cmp.Or(o.Connections, 8)
	c.PipelinePoolSize = -1 // everything is a pipeline: no second pool for them
	c.ConnMaxIdleTime = 5 * time.Minute
	// Nothing is said in the handshake but HELLO, AUTH and the name, so that old servers, Valkey and proxies do. The newer
	// protocol only adds push messages, which the lock has no use for.
	c.Protocol, c.DisableIdentity = 2, true
	c.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if o.CurrentURL != nil {
		c.CredentialsProvider = func() (user, password string) {
			if now, err := parseURL(o.CurrentURL()); err == nil {
				return now.Username, now.Password
			}
			return c.Username, c.Password
		}
	}
	if o.Opened != nil {
		c.OnConnect = func(context.Context, *redis.Conn) error { o.Opened(); return nil }
	}
	if err := encrypt(c, u, o); err != nil {
		return nil, err
	}
	if c.MasterName != "" {
		c.DialTimeout = findTimeout
		if c.Dialer == nil {
			c.Dialer = (&net.Dialer{Timeout: redisTimeout}).DialContext // of one server
		}
	}
	return c, nil
}

var betweenURLs = regexp.MustCompile(`,\s*([A-Za-z][A-Za-z0-9+.-]*://)`)

// SplitURLs are the URLs of a list, of whatever server. A comma separates only where a scheme follows it: one URL may
// name several hosts, and a password may hold one.
func SplitURLs(list string) []string {
	urls := strings.Split(betweenURLs.ReplaceAllString(list, "\x00$1"), "\x00")
	for i := range urls {
		urls[i] = strings.TrimSpace(urls[i])
	}
	return urls
}

// CheckURL says why Redis cannot be reached under this URL by its form alone, without ever quoting a secret.
func CheckURL(raw string) error {
	_, err := parseURL(raw)
	return err
}

// Hosts are those of a URL; none if it is malformed.
func Hosts(raw string) (hosts []string) {
	u, _ := parseURL(raw)
	for _, addr := range u.Addrs {
		hosts = append(hosts, hostOf(addr))
	}
	return hosts
}

func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr) // which made or read the address
	return host
}

// Twice is a server that two URLs of a list name, in whatever database; "" when there is none. Sentinels may stand in
// several URLs, for masters of different names.
func Twice(list string) string {
	seen := map[string]bool{}
	for _, raw := range SplitURLs(list) {
		u, _ := parseURL(raw) // CheckURL says what is wrong with it
		for _, addr := range u.Addrs {
			named := addr + " " + u.MasterName
			if seen[named] {
				return addr
			}
			seen[named] = true
		}
	}
	return ""
}

// place is where a URL leads: what go-redis connects to, and what it does not know.
type place struct {
	redis.UniversalOptions
	tls   bool
	certs certs.TLS
}

// parseURL takes apart what promises more than go-redis' own parsers take: several hosts with commas between them,
// and the login of the servers where theirs for sentinels has that of the sentinels. They read what is left, a login
// and a number of a database. No error of theirs is passed on: they quote what they cannot read, which may be a part of
// a password.
func parseURL(raw string) (p place, err error) {
	head, query, _ := strings.Cut(raw, "?")
	scheme, rest, ok := strings.Cut(head, "://")
	if !ok || scheme != "redis" && scheme != "rediss" {
		return p, errors.New("it begins with neither redis:// nor rediss://")
	}
	p.tls = scheme == "rediss"
	authority, path, _ := strings.Cut(rest, "/")
	at := strings.LastIndexByte(authority, '@')
	if at >= 0 && !strings.Contains(authority[:at], ":") { // there is no login without a password: it is mostly that
		return p, errors.New("what stands before the @ has no colon: write user:password, or :password")
	}
	if err := p.readQuery(query); err != nil {
		return p, err
	}
	if err := p.readHosts(authority[at+1:]); err != nil {
		return p, err
	}
	o, err := redis.ParseURL("redis://" + authority[:at+1] + "host/" + path)
	_, malformed := errors.AsType[*url.Error](err)
	switch {
	case malformed || strings.Contains(head, "#"): // which would end the URL
		return p, errors.New("user or password is not percent-encoded")
	case err != nil || o.DB < 0:
		return p, errors.New("what follows the address is no database number; percent-encode a / or ? in the password")
	case p.IsClusterMode && o.DB != 0:
		return p, errors.New("a cluster has only database 0")
	}
	p.Username, p.Password, p.DB = o.Username, o.Password, o.DB
	return p, nil
}

func (p *place) readQuery(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("what follows the ? is not percent-encoded")
	}
	known := append([]string{"cluster", "master", "sentinel_user", "sentinel_password"}, tlsParameters[:]...)
	for name := range values {
		if !slices.Contains(known, name) { // not shown: after an unencoded ? in a password it would be the rest of that
			return errors.New("unknown parameter; known are " + strings.Join(known, ", "))
		}
	}
	p.MasterName, p.certs = values.Get("master"), tlsParameters.Of(values.Get)
	p.SentinelUsername, p.SentinelPassword = values.Get("sentinel_user"), values.Get("sentinel_password")
	if values.Has("cluster") {
		p.IsClusterMode, err = strconv.ParseBool(values.Get("cluster"))
	}
	switch {
	case err != nil:
		return errors.New("cluster is neither true nor false")
	case p.IsClusterMode && p.MasterName != "":
		return errors.New("cluster and master exclude each other")
	case p.MasterName == "" && (p.SentinelUsername != "" || p.SentinelPassword != ""):
		return errors.New("sentinel_user and sentinel_password want master")
	case p.certs != (certs.TLS{}) && !p.tls:
		return errors.New("it names certificates, and what begins with redis:// is not encrypted: write rediss://")
	}
	if err := p.certs.Check(); err != nil {
		return fmt.Errorf("it names only one of ssl_certfile and ssl_keyfile: %w", err)
	}
	return nil
}

func (p *place) readHosts(hosts string) error {
	port := "6379"
	if p.MasterName != "" {
		port = "26379"
	}
	all := strings.Split(hosts, ",")
	for i, addr := range all {
		host, number, err := net.SplitHostPort(addr)
		if err != nil { // without a port
			host, number, err = net.SplitHostPort(addr + ":" + port)
		}
		if n, bad := strconv.ParseUint(number, 10, 16); err != nil || host == "" || bad != nil || n == 0 {
			return fmt.Errorf("address %d of %d is not host:port", i+1, len(all))
		}
		p.Addrs = append(p.Addrs, net.JoinHostPort(host, number))
	}
	slices.Sort(p.Addrs)
	p.Addrs = slices.Compact(p.Addrs)
	if len(p.Addrs) > 1 && !p.IsClusterMode && p.MasterName == "" {
		return errors.New("several addresses: say cluster=true, or master=NAME if they are sentinels")
	}
	return nil
}

var unnameable = regexp.MustCompile(`[^!-~]`)

// clientName replaces what CLIENT SETNAME refuses: everything but visible ASCII.
func clientName(name string) string {
	return unnameable.ReplaceAllString(strings.ReplaceAll(name, " ", ":"), "-")
}

// Sentinel is what one of a URL's sentinels says of the master that the URL names.
type Sentinel struct {
	Addr   string
	Err    error  // why it says nothing
	Master string // host and port; empty: it knows none of that name
	// Replicas is how many of the master it reaches; negative: not told.
	Replicas int
	// Quorum says why the sentinels could not agree to make a replica the master, or why it is not told. Nil: they could.
	Quorum error
}

// AskSentinels asks each sentinel that a URL names, at the same time. Other URLs have none.
func AskSentinels(ctx context.Context, rawURL string, o Options) ([]Sentinel, error) {
	c, err := options(rawURL, o)
	if err != nil || c.MasterName == "" {
		return nil, err
	}
	said := make([]Sentinel, len(c.Addrs))
	var wg sync.WaitGroup
	for i, addr := range c.Addrs {
		wg.Go(func() { said[i] = askSentinel(ctx, c, addr) })
	}
	wg.Wait()
	return said, nil
}

func askSentinel(ctx context.Context, c *redis.UniversalOptions, addr string) Sentinel {
	s := Sentinel{Addr: addr, Replicas: -1}
	o := c.Simple()
	o.Addr, o.Username, o.Password, o.DB = addr, c.SentinelUsername, c.SentinelPassword, 0
	o.CredentialsProvider, o.OnConnect, o.DialTimeout, o.PoolSize = nil, nil, redisTimeout, 1
	client := redis.NewSentinelClient(o)
	defer func() { _ = client.Close() }() // nothing is left in it
	named, err := client.GetMasterAddrByName(ctx, c.MasterName).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return s
	case err == nil && len(named) != 2:
		err = errors.New("it answered with something else than host and port")
	}
	if err != nil {
		s.Err = err
		return s
	}
	s.Master = net.JoinHostPort(named[0], named[1])
	if replicas, err := client.Replicas(ctx, c.MasterName).Result(); err == nil {
		s.Replicas = 0
		for _, r := range replicas {
			if !strings.Contains(r["flags"], "down") && !strings.Contains(r["flags"], "disconnected") {
				s.Replicas++
			}
		}
	}
	s.Quorum = client.CkQuorum(ctx, c.MasterName).Err()
	return s
}

// TLSSetting begins the names of the settings for certificates.
const TLSSetting = "ROLLBACKD_REDIS_TLS"

// tlsParameters name the parts of a [certs.TLS] in a URL as Python's client does; the last one is our own.
var tlsParameters = certs.Names{"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_server_name"}

// encrypt makes the client dial by itself, with the certificates of the moment and for each node under its own name.
func encrypt(c *redis.UniversalOptions, u place, o Options) error {
	switch {
	case o.TLS != nil && !u.tls:
		return errors.New("redis URL: a TLS configuration is given, and what begins with redis:// is not encrypted: write " +
			"rediss://")
	case o.TLS != nil && u.certs != (certs.TLS{}):
		return errors.New("redis URL: a TLS configuration is given, and certificates or a server name are named too: " +
			"keep one")
	case !u.tls:
		return nil
	}
	store := o.Certs
	if store == nil {
		store = &certs.Store{Warn: o.Warn}
	}
	if o.TLS == nil {
		if _, err := store.Config(u.certs); err != nil {
			return fmt.Errorf("redis URL: %w", err)
		}
	}
	c.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, redisTimeout, fmt.Errorf("no connection to Redis at %s within %v", addr,
			redisTimeout))
		defer cancel()
		h, err := store.Begin(certs.Peer{
			TLS: u.certs, Host: hostOf(addr), Base: o.TLS, Server: "Redis at " + addr, Setting: TLSSetting,
		})
		if err != nil {
			return nil, err
		}
		raw, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn, err := h.Client(ctx, raw)
		if err != nil {
			_ = raw.Close()
			return nil, err
		}
		return conn, nil
	}
	return nil
}

// TLSOf is what the URL says of certificates; nothing if it is malformed.
func TLSOf(raw string) certs.TLS {
	u, _ := parseURL(raw)
	return u.certs
}

// WithTLS writes certificates into a URL, where everybody who connects finds them. What the URL says already must be
// the same. The error completes a sentence about the settings, and quotes no secret.
func WithTLS(raw string, t certs.TLS) (string, error) {
	u, err := parseURL(raw)
	if err != nil || t == (certs.TLS{}) {
		return raw, err
	}
	if !u.tls {
		return raw, errors.New("has no effect on a URL that begins with redis://, which is not encrypted: write " +
			"rediss:// in ROLLBACKD_REDIS_URL")
	}
	return tlsParameters.Join(raw, certs.Query(raw), u.certs, t, TLSSetting, "ROLLBACKD_REDIS_URL")
}
