package config

// Several queues of one daemon: ROLLBACKD_QUEUES names them, and ROLLBACKD_NAME__X says X for one of them.

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// ofOne parts the name of a queue from a setting. No setting has it in its own name.
const ofOne = "__"

var plainQueue = regexp.MustCompile("^[a-z][a-z0-9]*$")

func queueNames() rule[[]string] {
	read := func(raw string) (names []string, err error) {
		for name := range strings.SplitSeq(raw, ",") {
			switch name = strings.TrimSpace(name); {
			case !plainQueue.MatchString(name):
				return nil, errors.New("has a name that is not of small letters and digits")
			case slices.Contains(names, name):
				return nil, errors.New("names " + name + " twice")
			}
			names = append(names, name)
		}
		return names, nil
	}
	return rule[[]string]{text: "comma-separated names of small letters and digits", read: read}
}

// ofAQueue are the settings that may be said for one queue. All others are the daemon's.
var ofAQueue = strings.Fields("GROUP EXCHANGE QUEUE ROUTING_KEYS TOPOLOGY RABBITMQ_API_URL KEY_FROM LOG_TABLE " +
	"HANDLER SQL_FILE EMPTY_ROLLBACK EMIT HTTP_TARGET HTTP_TIMEOUT HTTP_CONCURRENCY HTTP_TOKEN HTTP_HMAC_SECRET " +
	"HTTP_TLS_CA_FILE HTTP_TLS_CERT_FILE HTTP_TLS_KEY_FILE MAX_ATTEMPTS RETRY_DELAYS LANES BATCH_SIZE BATCH_LINGER " +
	"PREFETCH MEMORY_BUDGET LEASE HANDLER_TIMEOUT MAX_DEAD_RATE BRAKE_PAUSE")

// of is v as it is said for the queue with this name, if it is.
func (v Variable) of(queue string, ours map[string]string) Variable {
	name := Prefix + strings.ToUpper(queue) + ofOne + v.key
	_, set := ours[name]
	_, fileSet := ours[name+fileSuffix]
	if queue != "" && slices.Contains(ofAQueue, v.key) && (set || fileSet) {
		v.Name = name
	}
	return v
}

// refuseShared refuses what is said for the queue with this name and cannot be.
func (c *Config) refuseShared(queue string, ours map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		key, of := strings.CutPrefix(name, Prefix+strings.ToUpper(queue)+ofOne)
		known := slices.Contains(ofAQueue, key) || slices.Contains(ofAQueue, strings.TrimSuffix(key, fileSuffix))
		if of && queue != "" && !known {
			c.of("QUEUES").refuse("has %s, for which %s is no setting: docs/settings.md names those of a queue", queue, name)
		}
	}
}

// checkBeside compares the settings of two queues. The later one is refused.
func (c *Config) checkBeside(before Config) {
	beside := func(key string, broken bool, format string, args ...any) {
		c.needs(key, "", broken && before.good(key), format, args...)
	}
	queue := before.Queue
	beside("QUEUE", c.Queue == queue, "is the queue of two of ROLLBACKD_QUEUES: say ROLLBACKD_NAME__QUEUE for one")
	beside("ROUTING_KEYS", c.Exchange == before.Exchange && slices.ContainsFunc(c.RoutingKeys, func(key string) bool {
		return slices.Contains(before.RoutingKeys, key)
	}), "has a key that is bound to queue %s too: each of its messages would come to both", queue)
	another := c.Handler != before.Handler || c.SQLFile != before.SQLFile || c.HTTPTarget != before.HTTPTarget
	beside("GROUP", c.Group == before.Group && c.LogTable == before.LogTable && another, "is that of queue %s too, which "+
		"has another handler: what one has applied would be done for the other", queue)
}
