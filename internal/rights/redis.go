package rights

import (
	"slices"
	"strings"
)

// RedisKeys is the pattern of all keys that rollbackd touches.
const RedisKeys = "rollbackd:*"

// Command is a command of Redis that an account must be allowed, for all its subcommands unless one is named as
// command|subcommand.
type Command struct {
	Name string
	For  string // what it is needed for
	By   []Role
	try  []any
}

// Try is a call that changes nothing but the key, which must be one of RedisKeys; the commands are tried in order. It
// is nil when each connection tries it at its start.
func (c Command) Try(key string) []any {
	args := slices.Clone(c.try)
	for i, word := range args {
		if word == theKey {
			args[i] = key
		}
	}
	return args // nil for nil
}

// theKey stands for the key in a try.
const theKey = "KEY"

// Redis lists the commands that the roles need. HELLO and AUTH need no right. A cluster also needs the commands of
// RedisCluster.
func Redis(roles ...Role) []Command {
	lock := []Role{Daemon, CLI}
	all := []Command{
		{"client|setname", "the name in CLIENT LIST", lock, nil},
		{"select", "a database number other than 0", lock, nil},
		{"ping", "doctor, to see whether it is there", []Role{CLI}, []any{"ping"}},
		{"set", "locks and done markers", lock, []any{"set", theKey, "try", "nx", "px", 1000, "get"}},
		{"get", "what a lock holds, for SET with GET too", lock, []any{"get", theKey}},
		{"pttl", "when a lock ends", lock, []any{"pttl", theKey}},
		{"pexpire", "renewing locks, inside EVAL", lock, []any{"pexpire", theKey, 1000}},
		{"eval", "renewing and releasing only what is one's own", lock, []any{"eval", "return 1", 1, theKey}},
		{"del", "releasing locks, inside EVAL", lock, []any{"del", theKey}},
		{"info", "doctor, to show version and memory", []Role{CLI}, []any{"info", "server"}},
	}
	return slices.DeleteFunc(all, func(c Command) bool { return !needed(c.By, roles) })
}

// RedisCluster are the commands that a cluster's client needs besides, to find out which node has which key.
func RedisCluster() []string { return []string{"cluster|slots", "command"} }

// ACL is the command that makes an account of Redis with a password and these commands, and nothing else.
func ACL(commands []Command, user, password string) []string {
	rule := []string{"ACL", "SETUSER", user, "reset", "on", ">" + password, "~" + RedisKeys}
	for _, c := range commands {
		rule = append(rule, "+"+c.Name)
	}
	return rule
}

// SentinelACL is the command that makes an account of a sentinel with a password, for who finds a master there and
// hears of another one. The last two are doctor's.
func SentinelACL(user, password string) []string {
	return []string{"ACL", "SETUSER", user, "reset", "on", ">" + password, "&+switch-master", "&+replica-reconf-done",
		"+client|setname", "+ping", "+subscribe", "+sentinel|get-master-addr-by-name", "+sentinel|sentinels",
		"+sentinel|replicas", "+sentinel|ckquorum"}
}

// ACLText is such a command as one line for redis-cli, quoted.
func ACLText(rule []string) string {
	for i, word := range rule {
		if strings.ContainsAny(word, "*>|&") {
			rule[i] = "'" + word + "'"
		}
	}
	return strings.Join(rule, " ")
}
