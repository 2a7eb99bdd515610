package operator

import (
	"fmt"
	"strings"
)

// Subject says in words what an act is on.
func (a Act) Subject() string {
	r, err := a.Request()
	switch {
	case err != nil && len(a.Detail) > 0 && string(a.Detail) != "null":
		return string(a.Detail)
	case err != nil:
		return ""
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

// Outcome says in words what came of an act so far.
func (a Act) Outcome() string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	switch {
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
