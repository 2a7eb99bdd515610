package lock

import (
	"crypto/tls"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/redisdb"
)

// RedisOptions says how OpenRedis connects.
type RedisOptions struct {
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
}

// OpenRedis returns a client for the URL. It connects at first use, so it succeeds while Redis is away.
//
//	redis://[user:password@]host[:port][/db]                 one server
//	redis://…@host[:port],host[:port]…?cluster=true          Redis Cluster, by one or more of its nodes
//	redis://…@host[:port],host[:port]…[/db]?master=NAME      the master NAME, found by these sentinels;
//	                                                         sentinel_user and sentinel_password if those want some
//
// rediss:// speaks TLS and verifies the server's certificate, by the system's list of authorities or by the PEM file
// ssl_ca_certs; ssl_certfile and ssl_keyfile are the client's own, and ssl_server_name is expected in place of the
// host. The files are read again before each connection. What a URL does not say is not guessed: a cluster is spoken to
// only with cluster=true, and several addresses without cluster or master are an error. No error shows the password.
func OpenRedis(rawURL string, o RedisOptions) (redis.UniversalClient, error) {
	return redisdb.Open(rawURL, redisdb.Options{
		Name: o.Name, Connections: o.Connections, CurrentURL: o.CurrentURL, Opened: o.Opened,
		TLS: o.TLS, Warn: o.Warn,
	})
}
