package view

import (
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Row is one row of the consumer log.
type Row struct {
	Group    string       `json:"group" doc:"The kind of consumer."`
	Tag      string       `json:"tag" doc:"The kind of message."`
	Key      string       `json:"key" doc:"Of the message."`
	Status   string       `json:"status" doc:"processing, success, failed, dead or discarded."`
	Reason   dedup.Reason `json:"reason,omitempty" doc:"Why it is dead, or will be once its letter is confirmed."`
	Attempts int          `json:"attempts" doc:"Since the row was made or reopened."`
	Replays  int          `json:"replays" doc:"How often it was reopened."`
	Since    time.Time    `json:"since" doc:"The last transition, by the database's clock."`
	Created  time.Time    `json:"created_at" doc:"When the row was made, by the database's clock."`
	DeadAt   time.Time    `json:"dead_at,omitzero" doc:"When it died, if it is dead."`
	Owner    string       `json:"owner,omitempty" doc:"Of the last claim or replay."`
	Remark   string       `json:"remark,omitempty" doc:"The last error, or who discarded it and why."`
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
	Paused bool      `json:"paused" doc:"No daemon of the group and queue takes deliveries."`
	ID     string    `json:"id,omitempty" doc:"Of the act that paused."`
	By     string    `json:"by,omitempty" doc:"Who paused."`
	Why    string    `json:"why,omitempty" doc:"Why."`
	Since  time.Time `json:"since,omitzero" doc:"From when, by the database's clock."`
	Until  time.Time `json:"until,omitzero" doc:"When it ends by itself, by the database's clock."`
}

// PauseOf is a pause as it is shown; the zero one when none stands.
func PauseOf(p dedup.Pause) Pause {
	if p.Left == 0 {
		return Pause{}
	}
	return Pause{Paused: true, ID: p.ID, By: p.By, Why: p.Why, Since: p.Since, Until: p.Until}
}
