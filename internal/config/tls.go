package config

import (
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/redisdb"
)

// encrypted is one of the three servers for which settings may name certificates.
type encrypted struct {
	key, url, name string // what begins the settings' names, the setting with the URL, and what people call the server
	tls            *certs.TLS
	join           func() error // writes the certificates into the URLs or the DSN
}

func (c *Config) encrypted() []encrypted {
	return []encrypted{
		{"AMQP", "AMQP_URL", "RabbitMQ", &c.tls.amqp, func() (err error) {
			c.AMQPURLs, err = eachURL(c.AMQPURLs, c.amqpTLS)
			return err
		}},
		{"MYSQL", "MYSQL_DSN", "MySQL", &c.tls.mysql, func() (err error) {
			c.MySQLDSN, err = mysqldb.WithTLS(c.MySQLDSN, c.tls.mysql)
			return err
		}},
		{"REDIS", "REDIS_URL", "Redis", &c.tls.redis, func() error {
			if c.RedisURL == "" { // see doubts
				return nil
			}
			urls, err := eachURL(redisdb.SplitURLs(c.RedisURL), func(raw string) (string, error) {
				return redisdb.WithTLS(raw, c.tls.redis)
			})
			c.RedisURL = strings.Join(urls, ",")
			return err
		}},
	}
}

// settings are those of the server's certificates.
func (s encrypted) settings() (keys []string) {
	for _, part := range certs.Settings {
		keys = append(keys, s.key+"_TLS"+part)
	}
	return keys
}

// joinTLS writes the certificates into the URLs and the DSN, where everybody who connects finds them. What contradicts
// is refused at the first setting that is set.
func (c *Config) joinTLS() {
	for _, s := range c.encrypted() {
		keys := s.settings()
		if *s.tls == (certs.TLS{}) || !c.good(append(keys, s.url)...) {
			continue
		}
		if err := s.join(); err != nil {
			first := slices.IndexFunc(keys, func(key string) bool { return c.of(key).raw != "" })
			c.of(keys[first]).refuse("%v", err)
		}
	}
}

func (c Config) amqpTLS(raw string) (string, error) { return rabbit.WithTLS(raw, c.tls.amqp) }

// FreshAMQPURLs gives the AMQP URLs as they are now, as [Config.Fresh] does with a text, with the certificates that
// other settings name.
func (c Config) FreshAMQPURLs(warn func(Warning)) func() []string {
	text := c.Fresh("AMQP_URL", warn)
	return func() []string {
		urls, _ := eachURL(redisdb.SplitURLs(text()), c.amqpTLS) // only logins change: as at the start
		return urls
	}
}

// CertificateEnds are the PEM files of certificates that settings and URLs name, each with what says when the first of
// its certificates ends, as the file is then: in Unix seconds, NaN while it holds none. What stands in no file, such as
// a server's own certificate, is not among them.
func (c Config) CertificateEnds() map[string]func() float64 {
	var all []certs.TLS
	if dsn, err := mysqldb.ParseDSN(c.MySQLDSN); err == nil {
		all = append(all, mysqldb.TLSOf(dsn))
	}
	for _, raw := range c.AMQPURLs {
		all = append(all, rabbit.TLSOf(raw))
	}
	for _, raw := range redisdb.SplitURLs(c.RedisURL) {
		all = append(all, redisdb.TLSOf(raw))
	}
	for _, queue := range c.All() {
		all = append(all, certs.TLS{CA: queue.HTTPTLSCAFile, Cert: queue.HTTPTLSCertFile})
	}
	ends := map[string]func() float64{}
	for _, t := range all {
		for _, file := range []string{t.CA, t.Cert} {
			if file != "" {
				ends[file] = func() float64 { return certs.End(file) }
			}
		}
	}
	return ends
}
