package pages

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

// need is something that a person should look at.
type need struct {
	Level string // stop, warn or note
	What  string
	Why   string
	Path  string // the page that says more; "" for none
	Go    string // what is there
}

type outcome struct {
	Name string
	Now  float64 // a second, in the last ten seconds
	Hour int     // all of the last hour
}

// part is a dependency or a queue with its last trouble.
type part struct {
	Name    string
	State   string // answers, away, unknown, amiss, well again
	Trouble *view.Trouble
}

func (p *Pages) overview(ctx context.Context, r *http.Request, d *drawn) error {
	v := p.view
	hour, stuck, groups, dead, elects := v.Hour(), v.Stuck(), v.Groups(), v.Dead(), v.Options().Elects
	var leader view.Aged[string]
	if elects {
		leader = v.Leader()
	}
	health := v.Options().Health().Said()
	if d.Paused != nil { // what the banner says of a pause is not said twice
		health.Waiting = slices.DeleteFunc(health.Waiting, func(why string) bool {
			return strings.HasPrefix(why, waitsForPerson)
		})
	}
	if names := v.Unknown().Value; !health.PagesOnly { // where nothing is consumed its health names them
		health.Degraded = append(health.Degraded, names...)
	}
	flow, unread := v.Charts(ctx, r.URL.Query().Get("span"))
	latest := slices.Clone(flow.Pieces)
	slices.Reverse(latest) // it is first in the table
	d.Title, d.Events, d.Data = "Overview", p.liveAt(r), shown{
		"Now": hour.Now(), "Charts": flow, "Drawn": charts(flow), "NoCharts": unread, "Spans": view.Spans(),
		"Step": float64(flow.Step), "Pieces": latest, "Outcomes": outcomes(hour), "Parts": parts(hour),
		"Needs": append(needs(health, stuck.Value, dead, groups.Value, elects && leader.Err == nil &&
			!leader.At.IsZero() && leader.Value == ""), outboxNeeds(v.Outbox().Value)...),
		"Stuck": stuck, "Dead": dead, "Leader": leader, "Elects": elects,
	}
	return nil
}

// needs are what a person should look at, the worst first.
func needs(
	health server.Readiness, stuck []view.Stuck, dead view.Aged[int], groups view.Groups, nobodyElected bool,
) (all []need) {
	for _, why := range health.Waiting {
		all = append(all, waits(why))
	}
	add := func(is bool, n need) {
		if is {
			all = append(all, n)
		}
	}
	add(health.PagesOnly, need{
		Level: "note", What: "Nothing is consumed here",
		Why: "This process only shows pages: how consuming goes, the daemons of the group say.",
	})
	add(health.Draining, need{Level: "stop", What: "This daemon is stopping", Why: "It finishes what it has in hand."})
	add(health.Stuck != "",
		need{Level: "stop", What: "A lane is stuck", Why: health.Stuck + ": restart this daemon"})
	n := len(stuck)
	add(n > 0, need{
		Level: "warn", What: fmt.Sprintf("%d %s not move", n, plural(n, "message does", "messages do")),
		Why: "The time is over, and nobody goes on; why stands below.", Path: "#stuck-messages", Go: "See which",
	})
	add(nobodyElected, need{
		Level: "warn", What: "No daemon is elected",
		Why: "Retention, compensation and notifying rest until one is, which takes seconds after a start.",
	})
	for _, why := range health.Degraded {
		what, text, _ := strings.Cut(why, ": ")
		name := what == "group" || what == "queue"
		add(name, need{Level: "note", What: "Nothing has the name of this " + what, Why: text})
		add(!name, need{Level: "warn", What: "Something is amiss while messages flow", Why: why})
	}
	more := map[bool]string{true: " or more"}[dead.Value == dedup.MaxCounted]
	add(dead.Value > 0, need{
		Level: "warn", Path: "/letters", Go: "Look at them",
		What: fmt.Sprintf("%s%s dead %s", count(dead.Value), more, plural(dead.Value, "letter", "letters")),
		Why:  counted(dead) + "." + inGroups(groups, dead.Value),
	})
	return all
}

// counted says how old a figure is.
func counted(d view.Aged[int]) string { return "Counted " + ago(time.Since(d.At)) + " ago" }

// inGroups says what is known of n dead letters, which may be fewer or more than were grouped.
func inGroups(g view.Groups, n int) (text string) {
	if g.Seen == 0 {
		return ""
	}
	if text = " In"; g.Seen < n && g.More {
		text = fmt.Sprintf(" Of these, %s %s been looked at so far, in", count(g.Seen), plural(g.Seen, "has", "have"))
	}
	text += fmt.Sprintf(" %d %s; the largest: %s.", len(g.All), plural(len(g.All), "group", "groups"), g.All[0].Reason)
	if g.Parked > 0 {
		text += fmt.Sprintf(" %s of them parked: replayed as often as is allowed.", count(g.Parked))
	}
	return text
}

// The names under which the engine says that a person or the brake makes it consume nothing.
const (
	waitsForPerson = "person: "
	waitsForBrake  = "max_dead_rate: "
)

// waits says what it is that nothing is consumed for, and where that can be changed.
func waits(why string) need {
	if by, ok := strings.CutPrefix(why, waitsForPerson); ok {
		return need{
			Level: "stop", What: "A person has paused consuming", Why: "It is " + by + ".", Path: "/pause",
			Go: "Resume or change it",
		}
	}
	if what, ok := strings.CutPrefix(why, waitsForBrake); ok {
		return need{
			Level: "stop", What: "The brake holds: too many messages fail", Why: "There were " + what + ".",
			Path: "/letters", Go: "See the dead letters",
		}
	}
	return need{Level: "stop", What: "Nothing is consumed", Why: why}
}

// partName is what is amiss, in words where the engine's name says too little.
func partName(name string) string {
	return cmp.Or(map[string]string{waitsForPerson: "pause by a person", waitsForBrake: "brake"}[name+": "], name)
}

// outcomes are the deliveries by outcome, the most frequent first; those that did not happen in the hour are left out.
func outcomes(h view.Hour) (all []outcome) {
	sum := map[string]float64{}
	for i, s := range h.Samples {
		for name, r := range s.Rates {
			if i > 0 { // else nobody knows since when its deliveries came
				sum[name] += r * s.At.Sub(h.Samples[i-1].At).Seconds()
			}
		}
	}
	for name, deliveries := range sum {
		if n := int(math.Round(deliveries)); n > 0 {
			all = append(all, outcome{name, h.Now().Rates[name], n})
		}
	}
	slices.SortFunc(all, func(a, b outcome) int {
		return cmp.Or(cmp.Compare(b.Hour, a.Hour), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// parts are the dependencies, and whatever else was in trouble within memory.
func parts(h view.Hour) (all []part) {
	last := map[string]*view.Trouble{}
	for i := range h.Troubles {
		last[h.Troubles[i].What] = &h.Troubles[i]
	}
	up := h.Now().Up
	for _, name := range slices.Sorted(maps.Keys(up)) {
		state := "away"
		switch {
		case up[name]:
			state = "answers"
		case last[name] == nil: // this daemon has just begun
			state = "unknown"
		}
		all = append(all, part{name, state, last[name]})
	}
	for _, t := range h.Troubles {
		if _, dependency := up[t.What]; !dependency {
			state := map[bool]string{true: "amiss", false: "well again"}[t.Until.IsZero()]
			all = append(all, part{t.What, state, last[t.What]})
		}
	}
	return all
}
