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
	c, _, err := options(rawURL, o)
	if err != nil {
		return nil, err
	}
	return redis.NewUniversalClient(c), nil
}

func options(rawURL string, o Options) (*redis.UniversalOptions, redisURL, error) {
	u, err := parseURL(rawURL)
	if err != nil {
		return nil, u, fmt.Errorf("redis URL: %w", err)
	}
	c := &redis.UniversalOptions{
		Addrs: u.addrs, Username: u.user, Password: u.password, DB: u.db,
		MasterName: u.master, SentinelUsername: u.sentinelUser, SentinelPassword: u.sentinelPassword,
		IsClusterMode: u.cluster,
		ClientName:    clientName(o.Name),

		ContextTimeoutEnabled: true, // without it a context does not bound a command
		DialTimeout:           redisTimeout, ReadTimeout: redisTimeout, WriteTimeout: redisTimeout, PoolTimeout: redisTimeout,
		DialerRetries: 1,
		MaxRetries:    redisRetries, MaxRetryBackoff: 50 * time.Millisecond,

		PoolSize:         cmp.Or(o.Connections, 8),
		PipelinePoolSize: -1, // everything is a pipeline: no second pool for them
		ConnMaxIdleTime:  5 * time.Minute,

		// Nothing is said in the handshake but HELLO, AUTH and the name, so that old servers, Valkey and proxies do.
		Protocol:                 2, // the newer one only adds push messages, which the lock has no use for
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if o.CurrentURL != nil {
		c.CredentialsProvider = func() (user, password string) {
			if now, err := parseURL(o.CurrentURL()); err == nil {
				return now.user, now.password
			}
			return u.user, u.password
		}
	}
	if o.Opened != nil {
		c.OnConnect = func(context.Context, *redis.Conn) error { o.Opened(); return nil }
	}
	if err := encrypt(c, u, o); err != nil {
		return nil, u, err
	}
	if u.master != "" {
		c.DialTimeout = findTimeout
		if c.Dialer == nil {
			c.Dialer = (&net.Dialer{Timeout: redisTimeout}).DialContext // of one server
		}
	}
	return c, u, nil
}

var betweenURLs = regexp.MustCompile(`,\s*(rediss?://)`)

// SplitURLs are the URLs of a list. A comma separates only where a scheme follows it: one URL may name several hosts.
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
	u, err := parseURL(raw)
	if err != nil {
		return nil
	}
	for _, addr := range u.addrs {
		hosts = append(hosts, hostOf(addr))
	}
	return hosts
}

// Twice is a server that two URLs of a list name, in whatever database; "" when there is none. Sentinels may stand in
// several URLs, for masters of different names.
func Twice(list string) string {
	seen := map[string]bool{}
	for _, raw := range SplitURLs(list) {
		u, err := parseURL(raw)
		if err != nil {
			continue // CheckURL says so
		}
		for _, addr := range u.addrs {
			if named := addr + " " + u.master; seen[named] {
				return addr
			}
		}
		for _, addr := range u.addrs {
			seen[addr+" "+u.master] = true
		}
	}
	return ""
}

type redisURL struct {
	tls, cluster                           bool
	certs                                  certs.TLS
	user, password                         string
	addrs                                  []string
	db                                     int
	master, sentinelUser, sentinelPassword string
}

// parseURL reads the URL by hand, because net/url refuses several addresses with ports.
func parseURL(raw string) (redisURL, error) {
	var u redisURL
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme != "redis" && scheme != "rediss" {
		return u, errors.New("it begins with neither redis:// nor rediss://")
	}
	u.tls = scheme == "rediss"
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	hosts := authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		hosts = authority[i+1:]
		if err := u.readLogin(authority[:i]); err != nil {
			return u, err
		}
	}
	if err := u.readQuery(query); err != nil {
		return u, err
	}
	if err := u.readHosts(hosts); err != nil {
		return u, err
	}
	if path == "" {
		return u, nil
	}
	db, err := strconv.ParseUint(path, 10, 15)
	if err != nil {
		return u, errors.New("what follows the address is no database number; percent-encode a / or ? in the password")
	}
	if u.cluster && db != 0 {
		return u, errors.New("a cluster has only database 0")
	}
	u.db = int(db)
	return u, nil
}

func (u *redisURL) readLogin(login string) (err error) {
	user, password, ok := strings.Cut(login, ":")
	if !ok { // Redis has no login without a password, and what stands alone is mostly that
		return errors.New("what stands before the @ has no colon: write user:password, or :password")
	}
	if u.user, err = url.PathUnescape(user); err != nil {
		return errors.New("the user is not percent-encoded") // err would show it
	}
	if u.password, err = url.PathUnescape(password); err != nil {
		return errors.New("the password is not percent-encoded")
	}
	return nil
}

func (u *redisURL) readQuery(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("what follows the ? is not percent-encoded")
	}
	for name, vs := range values {
		v := vs[len(vs)-1]
		switch name {
		case "cluster":
			if u.cluster, err = strconv.ParseBool(v); err != nil {
				return errors.New("cluster is neither true nor false")
			}
		case "master":
			u.master = v
		case "sentinel_user":
			u.sentinelUser = v
		case "sentinel_password":
			u.sentinelPassword = v
		case "ssl_ca_certs":
			u.certs.CA = v
		case "ssl_certfile":
			u.certs.Cert = v
		case "ssl_keyfile":
			u.certs.Key = v
		case "ssl_server_name":
			u.certs.ServerName = v
		default:
			// The name is not shown: after an unencoded ? in a password it would be the rest of that.
			return errors.New("unknown parameter; known are cluster, master, sentinel_user, sentinel_password, " +
				"ssl_ca_certs, ssl_certfile, ssl_keyfile and ssl_server_name")
		}
	}
	switch {
	case u.cluster && u.master != "":
		return errors.New("cluster and master exclude each other")
	case u.master == "" && (u.sentinelUser != "" || u.sentinelPassword != ""):
		return errors.New("sentinel_user and sentinel_password want master")
	case u.certs != (certs.TLS{}) && !u.tls:
		return errors.New("it names certificates, and what begins with redis:// is not encrypted: write rediss://")
	}
	if err := u.certs.Check(); err != nil {
		return fmt.Errorf("it names only one of ssl_certfile and ssl_keyfile: %w", err)
	}
	return nil
}

func (u *redisURL) readHosts(hosts string) error {
	port := "6379"
	if u.master != "" {
		port = "26379"
	}
	for addr := range strings.SplitSeq(hosts, ",") {
		host, p, err := net.SplitHostPort(addr)
		if err != nil { // without a port
			host, p, err = net.SplitHostPort(addr + ":" + port)
		}
		if n, bad := strconv.ParseUint(p, 10, 16); err != nil || host == "" || bad != nil || n == 0 {
			return fmt.Errorf("address %d of %d is not host:port", len(u.addrs)+1, strings.Count(hosts, ",")+1)
		}
		u.addrs = append(u.addrs, net.JoinHostPort(host, p))
	}
	slices.Sort(u.addrs)
	u.addrs = slices.Compact(u.addrs)
	if len(u.addrs) > 1 && !u.cluster && u.master == "" {
		return errors.New("several addresses: say cluster=true, or master=NAME if they are sentinels")
	}
	return nil
}

// clientName replaces what CLIENT SETNAME refuses: everything but visible ASCII.
func clientName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return ':'
		case r < '!' || r > '~':
			return '-'
		}
		return r
	}, name)
}
