package config

// What other packages are told of the settings, beside what the engine takes as it is.

import (
	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/stock"
)

// NoDatabase is what to do about a database that does not exist, or not for this user.
const NoDatabase = "`migrate` makes tables only: make the database with CREATE DATABASE and give the user its " +
	"rights, see docs/rights.md"

// Migrations are the tables that this configuration needs: those of the consumer log, of the built-in handler, of a
// lock that is in MySQL, and of an outbox.
func (c Config) Migrations() dedup.MigrateOptions {
	o := dedup.MigrateOptions{Table: c.LogTable}
	if c.Handler == HandlerStock {
		o.Extra = []dedup.MigrationSet{{Name: stock.MigrationSet, Files: stock.Migrations()}}
	}
	if c.Lock == lock.KindMySQL {
		o.Extra = append(o.Extra, dedup.MigrationSet{Name: lockers.MigrationSet, Files: lockers.Migrations()})
	}
	if c.Outbox || c.Emit != "" {
		o.Extra = append(o.Extra, outbox.Sets().Extra...)
	}
	return o
}

// MySQLConnections is how many connections of MySQL the consumers of all queues have at most.
func (c Config) MySQLConnections() int {
	n := c.Config.MySQLConnections()
	for _, other := range c.beside {
		other.WithoutKeeper, other.Outbox = true, false // there is one for all
		n += other.Config.MySQLConnections()
	}
	return n
}

// OwnTables are the tables that rollbackd has in the schema of ROLLBACKD_MYSQL_DSN, those of a lock there too, and
// without those of the stock, which are the built-in handler's.
func (c Config) OwnTables() []string {
	return append(dedup.Tables(c.LogTable), lockers.MySQLTable, outbox.Table)
}

// LockServers are those of the lock, for connections with this name; engine and pages ask for logins anew besides.
func (c Config) LockServers(name string) lockers.Servers {
	return lockers.Servers{
		Kind: c.Lock, RedisURL: c.RedisURL, MySQLDSN: c.MySQLDSN, ZooKeeperURL: c.ZooKeeperURL, Name: name, Connections: 2,
	}
}

// LockSetting is the key of the setting that says where the lock is.
func (c Config) LockSetting() string {
	switch c.Lock {
	case lock.KindMySQL:
		return "MYSQL_DSN"
	case lock.KindZooKeeper:
		return "ZOOKEEPER_URL"
	}
	return "REDIS_URL"
}

// TopologyConfig is the exchange and the queues.
func (c Config) TopologyConfig() rabbit.TopologyConfig {
	return rabbit.TopologyConfig{
		Exchange: c.Exchange, Queue: c.Queue, RoutingKeys: c.RoutingKeys, Delays: c.RetryDelays,
		TakeMain: c.Topology == consumer.TopologyCheck,
	}
}
