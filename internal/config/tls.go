package config

import (
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/redisdb"
)

// tlsKeys are the settings for one server's certificates, without what begins their names.
var tlsKeys = []string{"_CA_FILE", "_CERT_FILE", "_KEY_FILE", "_SERVER_NAME"}

// joinTLS writes the certificates into the URLs and the DSN. What contradicts is refused at the first setting that is
// set.
func (c *Config) joinTLS(good func(...string) bool) {
	for _, server := range []struct {
		url, tls string // the settings
		set      certs.TLS
		join     func() error
	}{
		{"AMQP_URL", "AMQP_TLS", c.tls.amqp, func() (err error) {
			c.AMQPURLs, err = withTLS(c.AMQPURLs, c.tls.amqp)
			return err
		}},
		{"MYSQL_DSN", "MYSQL_TLS", c.tls.mysql, func() (err error) {
			c.MySQLDSN, err = mysqldb.WithTLS(c.MySQLDSN, c.tls.mysql)
			return err
		}},
		{"REDIS_URL", "REDIS_TLS", c.tls.redis, func() (err error) {
			if c.RedisURL == "" { // see doubts
				return nil
			}
			urls := redisdb.SplitURLs(c.RedisURL)
			for i, url := range urls {
				if urls[i], err = redisdb.WithTLS(url, c.tls.redis); err != nil {
					return err
				}
			}
			c.RedisURL = strings.Join(urls, ",")
			return nil
		}},
	} {
		keys := []string{server.url}
		for _, key := range tlsKeys {
			keys = append(keys, server.tls+key)
		}
		if server.set == (certs.TLS{}) || !good(keys...) {
			continue
		}
		if err := server.join(); err != nil {
			c.firstSet(keys[1:]).refuse("%v", err)
		}
	}
}

// firstSet is the first of these settings that has a value.
func (c *Config) firstSet(keys []string) *setting {
	return c.of(keys[max(0, slices.IndexFunc(keys, func(key string) bool { return c.of(key).raw != "" }))])
}

func withTLS(urls []string, t certs.TLS) (whole []string, err error) {
	for _, raw := range urls {
		if raw, err = rabbit.WithTLS(raw, t); err != nil {
			return urls, err
		}
		whole = append(whole, raw)
	}
	return whole, nil
}

// FreshAMQPURLs gives the AMQP URLs as they are now, as [Config.Fresh] does with a text, with the certificates that
// other settings name.
func (c Config) FreshAMQPURLs(warn func(Warning)) func() []string {
	text := c.Fresh("AMQP_URL", warn)
	return func() []string {
		urls, _ := withTLS(SplitURLs(text()), c.tls.amqp) // only logins change, so it fails no more than at the start
		return urls
	}
}

// withoutRedis says why no Redis is asked.
func (c *Config) withoutRedis() string {
	if c.of("REDIS_URL").raw == offWord {
		return "REDIS_URL is " + offWord
	}
	return "LOCK is " + string(c.Lock)
}

// idleTLS are settings of certificates for a server that is not used.
func (c *Config) idleTLS() (doubts []Warning) {
	if c.RedisURL != "" {
		return nil
	}
	for _, key := range tlsKeys {
		if s := c.of("REDIS_TLS" + key); s.raw != "" {
			doubts = append(doubts, Warning{Variable: s.Name, What: "has no effect: " + c.withoutRedis()})
		}
	}
	return doubts
}
