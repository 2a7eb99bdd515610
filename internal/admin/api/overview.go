package api

import (
	"context"
	"math"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

func (a *API) overview() {
	look(a, route{
		id: "get-overview", path: "/overview", tag: "Overview", summary: "How it stands",
		details: "What is consumed, what waits, what is amiss and what does not move, from the memory of the daemon that " +
			"answers: rates, lag and troubles are its own, queues and rows are everybody's.",
	}, a.getOverview)
	look(a, route{
		id: "get-hour", path: "/hour", tag: "Overview", summary: "The last hour",
		details: "A sample every ten seconds, the oldest first, from the memory of the daemon that answers; fewer when it " +
			"has not run for an hour.",
	}, a.getHour)
}

// Overview is how it stands.
type Overview struct {
	Health   admin.Readiness `json:"health" doc:"What /readyz answers."`
	Stuck    string          `json:"stuck,omitempty" doc:"Why this daemon should be restarted."`
	Now      *Sample         `json:"now,omitempty" doc:"The last sample; missing in the first moments of a daemon."`
	Troubles []view.Trouble  `json:"troubles"`
	Unmoved  Unmoved         `json:"unmoved" doc:"Messages that do not move although they could."`
	Letters  DeadLetters     `json:"dead_letters" doc:"As last looked at; /letters/groups has the groups."`
}

// DeadLetters says how many there are.
type DeadLetters struct {
	Seen   int       `json:"seen" doc:"Letters that were looked at."`
	More   bool      `json:"more" doc:"There are more."`
	Groups int       `json:"groups" doc:"Groups of failures."`
	Parked int       `json:"parked" doc:"Of those seen: replayed as often as is allowed."`
	AsOf   time.Time `json:"as_of,omitzero" doc:"When they were looked at. Missing: not yet."`
}

// Unmoved are messages that do not move.
type Unmoved struct {
	Items []view.Stuck `json:"items" doc:"The longest overdue of the first that were looked at, 20 at most."`
	AsOf  time.Time    `json:"as_of,omitzero" doc:"When they were looked at. Missing: not yet."`
	Error string       `json:"error,omitempty" doc:"Why they could not be looked at again."`
}

// Sample is what was measured at a moment.
type Sample struct {
	At     time.Time          `json:"at" doc:"By this daemon's clock."`
	Rates  map[string]float64 `json:"rates" doc:"Deliveries a second by outcome, since the sample before."`
	Lag    *float64           `json:"lag_seconds,omitempty"`
	Ready  map[string]float64 `json:"ready"`
	Dead   *float64           `json:"dead_rows,omitempty"`
	Leader bool               `json:"leader" doc:"This daemon does what one of a group is enough for."`
	Up     map[string]bool    `json:"up" doc:"Of each dependency whether it answers."`
}

func sampleOf(s view.Sample) Sample {
	out := Sample{At: s.At.UTC(), Rates: s.Rates, Ready: s.Ready, Leader: s.Leader, Up: s.Up}
	if !math.IsNaN(s.Lag) && !math.IsInf(s.Lag, 0) {
		out.Lag = &s.Lag
	}
	if !math.IsNaN(s.Dead) {
		out.Dead = &s.Dead
	}
	return out
}

func (a *API) getOverview(context.Context, *struct{}) (Overview, error) {
	v := a.o.View
	health, hour, stuck, groups := v.Options().Health(), v.Hour(), v.Stuck(), v.Groups()
	o := Overview{
		Health: health.Readiness(), Stuck: health.Stuck, Troubles: hour.Troubles,
		Unmoved: Unmoved{Items: []view.Stuck{}, AsOf: stuck.At.UTC()},
		Letters: DeadLetters{
			Seen: groups.Value.Seen, More: groups.Value.More, Groups: len(groups.Value.All), Parked: groups.Value.Parked,
			AsOf: groups.At.UTC(),
		},
	}
	if n := hour.Now(); !n.At.IsZero() {
		now := sampleOf(n)
		o.Now = &now
	}
	if stuck.Value != nil {
		o.Unmoved.Items = stuck.Value
	}
	if stuck.Err != nil {
		o.Unmoved.Error = stuck.Err.Error()
	}
	return o, nil
}

// Hour is the last hour.
type Hour struct {
	Samples []Sample `json:"samples" doc:"The oldest first."`
}

func (a *API) getHour(context.Context, *struct{}) (Hour, error) {
	h := Hour{Samples: []Sample{}}
	for _, s := range a.o.View.Hour().Samples {
		h.Samples = append(h.Samples, sampleOf(s))
	}
	return h, nil
}
