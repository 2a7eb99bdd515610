package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

func (a *API) acts() {
	look(a, route{
		id: "list-acts", path: "/acts", tag: "Acts", summary: "Who did what",
		details: "What a person or a program did by a page, by this API or by a command, and what the fleet replayed by " +
			"itself: runs over dead letters, pauses, resumes, what was mended, deleted or refused, the latest first.",
	}, soon(a.listActs))
	look(a, route{
		id: "get-act", path: "/acts/{id}", tag: "Acts", summary: "One act",
		details: "A run shows how far it is, and when it has ended what it came to.", errors: []int{http.StatusNotFound},
	}, soon(a.getAct))
	look(a, route{
		id: "get-pause", path: "/pause", tag: "Acts", summary: "Whether consuming is paused",
		details: "For all daemons of the group and queue.",
	}, soon(a.getPause))
}

func (a *API) listActs(ctx context.Context, in *struct {
	Kind  string    `query:"kind" maxLength:"32"`
	State string    `query:"state" enum:"running,done,stopped,failed" doc:"Only those in this state."`
	Actor string    `query:"actor" maxLength:"200" doc:"Only those of this one."`
	Since time.Time `query:"since" doc:"It was written down then or later, by the database's clock."`
	Until time.Time `query:"until" doc:"It was written down before then."`
	After string    `query:"after" maxLength:"100" doc:"The next of the page before; missing: the first page."`
	Limit int       `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many at most."`
}) (Page[operator.Act], error) {
	if in.After != "" && uuid.Validate(in.After) != nil {
		return Page[operator.Act]{}, wrong("query.after", "it is not what the page before said as next")
	}
	all, next, err := a.o.Desk.Acts(ctx, operator.ActFilter{
		Kind: operator.Kind(in.Kind), State: operator.State(in.State), Actor: in.Actor, Since: in.Since, Until: in.Until,
		Before: in.After, Limit: in.Limit,
	})
	return pageOf(all, next), err
}

func (a *API) getAct(ctx context.Context, in *struct {
	ID string `path:"id" maxLength:"100" doc:"Of the act."`
}) (operator.Act, error) {
	return a.o.Desk.Act(ctx, in.ID)
}

func (a *API) getPause(ctx context.Context, _ *struct{}) (view.Pause, error) {
	p, err := a.o.Desk.Paused(ctx)
	return view.PauseOf(p), err
}
