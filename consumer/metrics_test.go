package consumer_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/lock"
)

func TestEveryMetricAndLabelIsThereFromTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.open(w.dsn)
	client, err := lock.OpenRedis(w.redisURL, lock.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	reg := prometheus.NewRegistry()
	w.cfg.AMQPURLs, w.cfg.Registerer = []string{w.amqpURL}, reg
	if _, err := consumer.New(w.cfg, w.handler, consumer.Options{DB: db, Redis: client}); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{} // series of each
	for _, f := range families {
		got[f.GetName()] = len(f.GetMetric())
	}
	want := map[string]int{
		"rollbackd_deliveries_total":         len(consumer.Outcomes()),
		"rollbackd_dead_lettered_total":      7, // reasons
		"rollbackd_batch_size":               1,
		"rollbackd_batch_duration_seconds":   5, // phases
		"rollbackd_lag_seconds":              1,
		"rollbackd_lock_attempts_total":      len(lock.Results()),
		"rollbackd_publishes_total":          6, // kinds and results
		"rollbackd_dependency_up":            3,
		"rollbackd_paused":                   6, // dependencies, the brake, held deliveries, a person
		"rollbackd_held_deliveries":          1,
		"rollbackd_degraded":                 5, // why and queue
		"rollbackd_contention_total":         1,
		"rollbackd_dependency_lost_total":    3,
		"rollbackd_handler_duration_seconds": 2, // results
		"rollbackd_connections_opened_total": 1, // RabbitMQ: the pools are the caller's
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s has %d series, want %d", name, got[name], want[name])
		}
	}
}

// Given a service that answers one call in each way, then each answer is counted by its word, once, and the words that
// nobody has said are there too.
func TestCallsAreCountedByWhatTheyCameTo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.calling(consumer.CallOptions{})
	s.answering(func(_ context.Context, m consumer.Message) error {
		err := errors.New("no")
		switch {
		case m.Key == "permanent":
			return consumer.Permanent(err)
		case m.Attempt > 1 || s.times(m.Key) > 1:
			return nil
		case m.Key == "failed":
			return err
		case m.Key == "later":
			return consumer.Later(err, time.Millisecond)
		}
		return nil
	})
	w.publish("{}", "fine", "permanent", "failed", "later")
	r := w.start()
	w.ended(dedup.Success, "fine", "failed", "later")
	w.ended(dedup.Dead, "permanent")
	want := map[string]int{
		"applied": 3, "permanent": 1, "failed": 1, "later": 1, "unavailable": 0, "unanswered": 0, "misconfigured": 0,
		"stopped": 0,
	}
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		if f.GetName() != "rollbackd_calls_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			got[m.GetLabel()[0].GetValue()] = int(m.GetCounter().GetValue())
		}
	}
	w.want("calls", got, want)
}
