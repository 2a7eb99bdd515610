package operator

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/deadletter"
)

// Subject says in words what an act is on.
func (a Act) Subject() string {
	r, err := a.Request()
	var of OutboxRequest
	var rehearsed RehearsalRequest
	var edited Edited
	switch ofOutbox := a.Kind == KindOutboxRetry || a.Kind == KindOutboxDrop; {
	case ofOutbox && json.Unmarshal(a.Detail, &of) == nil:
		return of.String()
	case a.Kind == KindEdit && json.Unmarshal(a.Detail, &edited) == nil && edited.Key != "":
		return fmt.Sprintf("%v, sent as %v", edited.MessageName, edited.Sent)
	case a.Kind == KindRehearse && json.Unmarshal(a.Detail, &rehearsed) == nil:
		return Words(rehearsed.Filter)
	case err != nil:
		return named(a.Detail)
	}
	text := Words(r.Filter)
	if r.From != "" {
		text += " from " + r.From
	}
	if r.Limit > 0 {
		text += fmt.Sprintf(", at most %d", r.Limit)
	}
	return text
}

// named are the fields of a JSON object in words: the name of each, and its value where that is not true alone.
func named(detail json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(detail, &fields) != nil {
		return string(detail)
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch value, word := string(fields[name]), strings.ReplaceAll(name, "_", " "); value {
		case "true":
			words = append(words, word)
		case "false":
		default:
			words = append(words, word+" "+strings.Trim(value, `"`))
		}
	}
	return strings.Join(words, ", ")
}

// Outcome says in words what came of an act so far.
func (a Act) Outcome() string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	if report := a.Rehearsed(); report != nil {
		byOutcome := map[deadletter.Prospect]int{}
		for _, g := range report.Groups {
			byOutcome[g.Outcome] += g.Count
		}
		for _, o := range deadletter.Prospects() {
			add(byOutcome[o], o.Words())
		}
		add(report.Moved, "moved meanwhile")
	}
	switch {
	case a.Kind == KindRehearse && len(parts) == 0 && a.Progress != nil: // a list has no reports
		add(a.Progress.Done, "rehearsed")
	case a.Result != nil:
		r := a.Result
		add(r.Replayed, "replayed")
		add(r.Applied, "applied")
		add(r.FailedAgain, "failed again")
		add(r.Discarded, "discarded")
		add(r.Mended, "mended")
		add(r.Deleted, "deleted")
		add(r.Retried, "to be sent again")
		add(r.LeftCount, "stay")
	case a.Progress != nil:
		add(a.Progress.Done, "done")
	}
	if a.Silent > 0 {
		parts = append(parts, fmt.Sprintf("its worker is gone: it has said nothing for %.0f s", a.Silent))
	}
	return strings.Join(parts, ", ")
}
