package consumer

import (
	"log/slog"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// end is what endedByDelivery knows of a session.
type end struct {
	lived       time.Duration
	waited      int
	came, acked uint64
}

// Each end in a row of early ones is a reason for the precaution; a delivery is blamed once there was one to blame.
func TestADeliveryIsBlamedWhenThereWasOne(t *testing.T) {
	idle, held, waiting := end{}, end{came: 3, acked: 2}, end{waited: 1}
	done, late, full := end{came: 2, acked: 2}, end{lived: early, came: 3}, end{came: 11, acked: 10}
	for name, c := range map[string]struct {
		ends             []end
		blamed, cautious bool
	}{
		"one end":                         {[]end{held}, false, false},
		"idle":                            {[]end{idle, idle, idle}, false, true},
		"everything was acked":            {[]end{done, done}, false, true},
		"what came was not acked":         {[]end{held, held}, true, true},
		"messages waited":                 {[]end{idle, waiting}, true, true},
		"blamed once, it stays so":        {[]end{held, idle, idle}, true, true},
		"a long session between":          {[]end{held, late, held}, false, false},
		"a session that did much between": {[]end{held, full, held}, false, false},
		"blamed, then a long session":     {[]end{held, held, late, idle, idle}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := healthOf(slog.New(slog.DiscardHandler))
			s := (&engine{health: h}).mainQueue()
			s.queue, s.lanes, s.prefetch = "q", 1, 10
			h.missing(t.Context(), DependencyRabbitMQ, rabbit.ErrClosed) // by the first end
			blamed := false
			for _, e := range c.ends {
				s.stood, s.waited, s.came, s.acked = true, e.waited, e.came, e.acked
				blamed = s.endedByDelivery(t.Context(), rabbit.ErrClosed, e.lived)
			}
			if blamed != c.blamed || s.quarantine.active() != c.cautious {
				t.Errorf("blamed %v, cautious %v; want %v, %v", blamed, s.quarantine.active(), c.blamed, c.cautious)
			}
			if blamed && h.names(DependencyRabbitMQ) {
				t.Error("RabbitMQ, which is there, is said to be missing")
			}
		})
	}
}

func TestAProbeAfterDeliveriesWereGivenBackHasOneInHand(t *testing.T) {
	s := &source{c: &engine{
		cfg: Config{Lanes: 4, BatchSize: 100, GiveBackAfter: time.Minute, HoldLimit: 3 * time.Minute},
		log: slog.New(slog.DiscardHandler),
	}}
	for i, want := range []halfOpen{
		{lanes: 1, size: 100, patience: time.Minute, probe: true},
		{lanes: 1, size: 1, patience: 2 * time.Minute, probe: true},
		{lanes: 1, size: 1, patience: 3 * time.Minute, probe: true},
	} {
		if s.begin = probing(s.c, s.begin); s.begin != want {
			t.Errorf("probe %d is %+v, want %+v", i+1, s.begin, want)
		}
		s.after(t.Context(), errGiveBack, time.Second)
	}
}
