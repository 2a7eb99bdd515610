package view

import (
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Row is one row of the consumer log.
type Row struct {
	Group    string       `json:"group"`
	Tag      string       `json:"tag"`
	Key      string       `json:"key"`
	Status   string       `json:"status"`
	Reason   dedup.Reason `json:"reason,omitempty"`
	Attempts int          `json:"attempts"`
	Replays  int          `json:"replays"`
	Since    time.Time    `json:"since"`
	Created  time.Time    `json:"created_at"`
	DeadAt   time.Time    `json:"dead_at,omitzero"`
	Owner    string       `json:"owner,omitempty"`
	Remark   string       `json:"remark,omitempty"`
}

// RowsOf are rows as they are shown; never nil.
func RowsOf(rows []dedup.Row) []Row {
	all := []Row{}
	for _, r := range rows {
		row := Row{
			Group: r.Group, Tag: r.Tag, Key: r.Key, Status: r.Status.String(), Attempts: r.Attempts, Replays: r.Replays,
			Since: r.At, Created: r.CreatedAt, DeadAt: r.DeadAt, Owner: r.Owner, Remark: r.Remark,
		}
		if !r.DeadAt.IsZero() || r.Condemned() {
			row.Reason = r.Reason
		}
		all = append(all, row)
	}
	return all
}

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
