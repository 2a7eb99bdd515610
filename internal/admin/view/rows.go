package view

import (
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Pause says whether consuming is paused.
type Pause struct {
	Paused bool      `json:"paused"`
	ID     string    `json:"id,omitempty"`
	By     string    `json:"by,omitempty"`
	Why    string    `json:"why,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"`
}

// PauseOf is a pause as it is shown; the zero one when none stands.
func PauseOf(p dedup.Pause) Pause {
	if p.Left == 0 {
		return Pause{}
	}
	return Pause{Paused: true, ID: p.ID, By: p.By, Why: p.Why, Since: p.Since, Until: p.Until}
}
