package consumer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Config is what an engine is told. Every field must be set unless it says otherwise; [New] refuses what cannot work.
type Config struct {
	// Group names this kind of consumer: identities of two groups never meet. 1 to 100 bytes.
	Group string
	// Exchange is declared with the topology. At most 200 bytes.
	Exchange string
	// Queue is the main queue; the names of the retry, dead-letter and backstop queues derive from it.
	Queue string
	// RoutingKeys bind Queue to Exchange.
	RoutingKeys []string
	// KeyFrom says where a message's key is read, in the form of ROLLBACKD_KEY_FROM.
	KeyFrom string

	// MaxAttempts is how many counted attempts a message gets before it is dead-lettered. At least 1.
	MaxAttempts int
	// RetryDelays are the pauses after attempt 1, 2, …: MaxAttempts-1 at least, growing, each with a queue of its own.
	RetryDelays []time.Duration

	// Lanes is how many batches are worked on at once. At least 1.
	Lanes int
	// BatchSize is how many messages share a transaction at most.
	BatchSize int
	// BatchLinger is how long a batch waits for more after its first message.
	BatchLinger time.Duration
	// Prefetch is how many deliveries a lane may hold unacked. BatchSize to 65535.
	Prefetch int

	// Lease protects a claimed row from other workers, by the database's clock. Longer than HandlerTimeout.
	Lease time.Duration
	// LockTTL is how long a dead worker's lock in Redis keeps others off; 0 means 10s. DoneTTL is how long Redis ends
	// duplicates before MySQL is asked, at about 210 bytes a message; 0 means 5m. LockOnError says what happens while
	// Redis is away; empty means proceed.
	LockTTL, DoneTTL time.Duration
	LockOnError      dedup.LockPolicy
	// HandlerTimeout bounds one call of the handler.
	HandlerTimeout time.Duration
	// DrainTimeout bounds a stop: what is in hand then is abandoned.
	DrainTimeout time.Duration
	// GiveBackAfter is how long a lane keeps its batch while a dependency does not answer; then the deliveries go back to
	// the broker and nothing is consumed until the dependency answers. 0 means one minute.
	GiveBackAfter time.Duration
	// HoldLimit is how long a lane keeps deliveries it has not started. 0 means ten minutes, well below RabbitMQ's
	// consumer timeout of 30 minutes.
	HoldLimit time.Duration

	// MaxDead letters within MaxDeadWindow, when they are more than half of what was settled, pause the engine for
	// BrakePause: a broken deployment, not bad messages. MaxDead 0 turns the brake off.
	MaxDead       int
	MaxDeadWindow time.Duration
	BrakePause    time.Duration

	// Hook, if set, is called after each durable step with the step's name (see the Point constants). Tests kill the
	// process there; production leaves it nil.
	Hook func(Point)
}

// MaxBody is the largest body a message may have; a larger one is malformed.
const MaxBody = 256 << 10

// Point names a durable step of a delivery's life.
type Point string

// The points, in the order in which a message may pass them.
const (
	PointClaimed   Point = "claimed"   // a claim is committed, the attempt has not begun
	PointEffect    Point = "effect"    // the handler has written, nothing is committed
	PointCommitted Point = "committed" // the effect is committed, nothing is acked
	PointFailed    Point = "failed"    // a failed attempt is recorded, no copy is published
	PointRetryCopy Point = "retried"   // the retry copy is confirmed, nothing is acked
	PointLetter    Point = "lettered"  // the letter is confirmed, the row does not say dead
	PointDead      Point = "dead"      // the row says dead, nothing is acked
	PointAcked     Point = "acked"     // the acks are sent
)

func (c Config) withDefaults() Config {
	if c.GiveBackAfter == 0 {
		c.GiveBackAfter = time.Minute
	}
	if c.HoldLimit == 0 {
		c.HoldLimit = 10 * time.Minute
	}
	return c
}

func (c Config) topology() rabbit.TopologyConfig {
	return rabbit.TopologyConfig{Exchange: c.Exchange, Queue: c.Queue, RoutingKeys: c.RoutingKeys, Delays: c.RetryDelays}
}

func (c Config) validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Group != "" && len(c.Group) <= 100, "Group must have 1 to 100 bytes")
	bad(c.Queue != "" && len(c.Queue) <= 200, "Queue must have 1 to 200 bytes")
	bad(c.MaxAttempts >= 1, "MaxAttempts %d must be at least 1", c.MaxAttempts)
	bad(len(c.RetryDelays) >= max(1, c.MaxAttempts-1), "%d RetryDelays are too few for %d attempts", len(c.RetryDelays), c.MaxAttempts)
	for i := 1; i < len(c.RetryDelays); i++ {
		bad(c.RetryDelays[i] > c.RetryDelays[i-1], "RetryDelays must grow: %v", c.RetryDelays)
	}
	bad(c.Lanes >= 1, "Lanes %d must be at least 1", c.Lanes)
	bad(c.BatchSize >= 1 && c.BatchSize <= c.Prefetch, "BatchSize %d must be 1 to Prefetch %d", c.BatchSize, c.Prefetch)
	bad(c.Prefetch >= 1 && c.Prefetch <= 65535, "Prefetch %d must be 1 to 65535", c.Prefetch)
	bad(c.HandlerTimeout > 0 && c.Lease > c.HandlerTimeout, "Lease %v must be longer than HandlerTimeout %v", c.Lease, c.HandlerTimeout)
	bad(c.DrainTimeout > 0, "DrainTimeout %v must be positive", c.DrainTimeout)
	bad(c.MaxDead >= 0, "MaxDead %d must not be negative", c.MaxDead)
	bad(c.BatchLinger >= 0 && c.GiveBackAfter > 0 && c.HoldLimit > 0, "BatchLinger, GiveBackAfter and HoldLimit must not be negative")
	bad(c.LockTTL == 0 || c.LockTTL >= 100*time.Millisecond, "LockTTL %v must be at least 100ms", c.LockTTL)
	bad(c.DoneTTL == 0 || c.DoneTTL >= time.Millisecond, "DoneTTL %v must be at least 1ms", c.DoneTTL)
	bad(slices.Contains([]dedup.LockPolicy{"", dedup.LockProceed, dedup.LockPause}, c.LockOnError), "LockOnError %q must be %s or %s", c.LockOnError, dedup.LockProceed, dedup.LockPause)
	if err := c.topology().Validate(); err != nil {
		errs = append(errs, err)
	}
	bad(c.MaxDead == 0 || c.MaxDeadWindow > 0 && c.BrakePause > 0, "MaxDead needs MaxDeadWindow and BrakePause")
	return errors.Join(errs...)
}
