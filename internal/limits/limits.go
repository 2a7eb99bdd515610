// Package limits has the default and the range of each number that the library and the daemon are both told, so that
// consumer.Config, dedup.LogOptions and the settings cannot come to differ.
//
// What lives here: numbers. What must not: names of settings, texts, and imports of other packages of this module.
package limits

import (
	"cmp"
	"fmt"
	"regexp"
	"time"
)

// Number is what a configuration has.
type Number interface{ ~int | ~int64 }

// Off is the value of a field that switches off what has a default.
const Off = -1

// Of says what is taken for a setting of which nothing is said, and between which two it must be.
type Of[T Number] struct {
	Default, Low, High T
	// Least is what the engine itself can work with, where a setting asks for more; zero: Low.
	Least T
	Off   bool // Off says that there is to be none
}

// Holds reports whether a setting may have the value.
func (o Of[T]) Holds(v T) bool { return o.Low <= v && v <= o.High }

// Check refuses what the engine cannot work with; name is what the value is called there.
func (o Of[T]) Check(name string, v T) error {
	least := cmp.Or(o.Least, o.Low)
	if o.Off {
		least = 0
	}
	if v < least {
		return fmt.Errorf("%s %v must be at least %v", name, v, least)
	}
	return nil
}

// Field is a number of somebody's configuration.
type Field struct {
	Fill  func()       // gives it its default, and takes zero for what is off
	Keep  func()       // undoes the latter, so that Fill leaves it as it is
	Check func() error // see [Of.Check]
}

// In is the field under v, which is called name.
func (o Of[T]) In(name string, v *T) Field {
	return Field{func() {
		if *v = cmp.Or(*v, o.Default); o.Off && *v == Off {
			*v = 0
		}
	}, func() {
		if o.Off && *v == 0 {
			*v = Off
		}
	}, func() error { return o.Check(name, *v) }}
}

type duration = Of[time.Duration]

// The numbers, named as the fields of consumer.Config and the settings are.
var (
	MaxAttempts = Of[int]{Default: 5, Low: 1, High: 100}
	RetryDelay  = duration{Low: 100 * time.Millisecond, High: 24 * time.Hour, Least: 1}
	RetryDelays = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute} // the default
	MostDelays  = 20
	MaxDelay    = duration{Default: 24 * time.Hour, Low: time.Second, High: 720 * time.Hour}

	Lanes        = Of[int]{Default: 4, Low: 1, High: 256}
	BatchSize    = Of[int]{Default: 1000, Low: 1, High: 10_000}
	BatchLinger  = duration{Default: 2 * time.Millisecond, High: 10 * time.Second, Off: true}
	Prefetch     = Of[int]{Low: 1, High: 65_535}
	MemoryBudget = Of[int64]{Default: 64 << 20, Low: 4 << 20, High: 64 << 30, Least: 1}

	Lease          = duration{Default: 30 * time.Second, Low: time.Second, High: time.Hour, Least: time.Millisecond}
	HandlerTimeout = duration{Default: 10 * time.Second, Low: 2 * time.Second, High: 10 * time.Minute}
	LockTTL        = duration{Default: 10 * time.Second, Low: time.Second, High: 10 * time.Minute,
		Least: 100 * time.Millisecond}
	DoneTTL      = duration{Default: 5 * time.Minute, Low: time.Second, High: 24 * time.Hour, Least: time.Millisecond}
	DrainTimeout = duration{Default: 25 * time.Second, Low: 100 * time.Millisecond, High: time.Hour, Least: 1}

	GiveBackAfter = duration{Default: time.Minute, Low: 1}
	HoldLimit     = duration{Default: 10 * time.Minute, Low: 1}

	MaxDead       = Of[int]{Default: 100, Low: 1, High: 1_000_000, Off: true}
	MaxDeadWindow = duration{Default: time.Minute, Low: time.Second, High: time.Hour, Least: 1}
	BrakePause    = duration{Default: 5 * time.Minute, Low: time.Second, High: 24 * time.Hour, Least: 1}

	LogRetention    = duration{Default: 720 * time.Hour, Low: 24 * time.Hour, High: 87_600 * time.Hour, Off: true}
	MaxReplays      = Of[int]{Default: 10, Low: 1, High: 1000}
	CompensateAfter = duration{Low: time.Second, High: 720 * time.Hour}
	HTTPTimeout     = duration{Default: 5 * time.Second, Low: 100 * time.Millisecond, High: 10 * time.Minute}
	HTTPConcurrency = Of[int]{Default: 64, Low: 1, High: 10_000}
)

// The bytes that names may have. MostName leaves room in AMQP's 255 for the suffixes of the queues beside the main one,
// and MostTable in MySQL's 64 for those of the view, the events and what hangs on them.
const (
	MostGroup = 100
	MostName  = 200
	MostTable = 41
)

// Identifier is what a table's name must look like.
var Identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
