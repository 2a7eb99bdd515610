package api

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/outbox"
)

// routes are those that docs/openapi.json describes.
func (a *API) routes() {
	look(a, "get-overview", "/overview", a.getOverview)
	look(a, "get-hour", "/hour", a.getHour)
	look(a, "get-charts", "/charts", a.getCharts)
	look(a, "list-groups", "/letters/groups", a.listGroups)
	look(a, "get-group", "/letters/groups/{id}", a.getGroup)
	look(a, "list-letters", "/letters", a.listLetters)
	look(a, "get-letter", "/letter", a.getLetter)
	look(a, "preview-run", "/runs/preview", a.preview)
	look(a, "list-log", "/log", a.listLog)
	look(a, "get-message", "/message", a.getMessage)
	look(a, "get-order", "/order", a.getOrder)
	look(a, "list-acts", "/acts", soon(a.listActs))
	look(a, "get-act", "/acts/{id}", soon(a.getAct))
	look(a, "get-pause", "/pause", soon(a.getPause))
	look(a, "get-comparison", "/reconcile", soon(a.getComparison))
	look(a, "list-outbox", "/outbox", a.listOutbox)
	look(a, "get-outbox-message", "/outbox/message", a.getOutboxMessage)
	look(a, "preview-outbox", "/outbox/preview", a.previewOutbox)
	act(a, "start-run", "/runs", http.StatusCreated, by(a.view.Start))
	act(a, "rehearse", "/runs/rehearse", http.StatusCreated, by(a.view.Rehearse))
	act(a, "edit-letter", "/letter/edit", http.StatusCreated, by(a.view.Edit))
	act(a, "stop-run", "/runs/{id}/stop", http.StatusOK, a.stopRun)
	act(a, "pause", "/pause", http.StatusCreated, by(a.view.Pause))
	act(a, "resume", "/resume", http.StatusCreated, by(a.view.Resume))
	act(a, "compare", "/reconcile", http.StatusCreated, a.compare)
	act(a, "mend", "/reconcile/mend", http.StatusCreated, by(a.view.Mend))
	act(a, "expect", "/reconcile/expected", http.StatusCreated, by(a.view.Expect))
	act(a, "change-outbox", "/outbox", http.StatusCreated, by(a.view.ChangeOutbox))
}

// answer is what a route answers with.
type answer[T any] struct{ Body T }

// look adds a route that reads.
func look[I, T any](a *API, id, path string, do func(context.Context, *I) (T, error)) {
	op := huma.Operation{OperationID: id, Method: http.MethodGet, Path: path}
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*answer[T], error) {
		body, err := do(ctx, in)
		if err != nil {
			return nil, a.trouble(ctx, id, err)
		}
		return &answer[T]{body}, nil
	})
}

// soon gives up what the operator is asked when its servers take longer than somebody waits.
func soon[I, T any](do func(context.Context, *I) (T, error)) func(context.Context, *I) (T, error) {
	return func(ctx context.Context, in *I) (T, error) {
		return view.Within(ctx, view.ActsTime, func(ctx context.Context) (T, error) { return do(ctx, in) })
	}
}

// act adds a route that does something, once under its key.
func act[I any, P interface {
	*I
	asked() (key string, what any)
}](a *API, id, path string, status int, do func(ctx context.Context, in P, id string) (operator.Act, error)) {
	op := huma.Operation{
		OperationID: id, Method: http.MethodPost, Path: path, DefaultStatus: status, MaxBodyBytes: maxBody,
	}
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*done, error) {
		key, what := P(in).asked()
		text, _ := json.Marshal([]any{id, what}) // which was read from JSON
		once := operator.OnceRequest{Name: key, Hash: sha256.Sum256(text)}
		said, before, err := a.view.Once(ctx, once, 0, func(ctx context.Context, act string) (operator.Answer, error) {
			did, err := do(ctx, in, act)
			text, _ := json.Marshal(did) // whatever is wrong with it, the act is done, and must not be asked for again
			return operator.Answer{
				Status: status, ContentType: "application/json", Location: a.actAt(did.ID), Body: text,
			}, err
		})
		if err != nil {
			return nil, a.trouble(ctx, id, err)
		}
		answer := &done{Status: said.Status, Location: said.Location}
		if before {
			answer.Replayed = "true"
		}
		if err := json.Unmarshal(said.Body, &answer.Body); err != nil {
			return nil, a.trouble(ctx, id, fmt.Errorf("read the answer that is kept: %w", err))
		}
		return answer, nil
	})
}

// bound adds what requests are held against and the types of other packages do not say.
func (a *API) bound() {
	document := a.huma.OpenAPI()
	schemas := document.Components.Schemas.Map()
	for _, s := range schemas {
		for _, p := range s.Properties {
			p.Nullable = p.Nullable && p.Type != huma.TypeArray // a list without items is []
		}
	}
	words := map[string][]any{
		"reason": texts(dedup.Reasons()), "state": texts(outbox.States()), "status": texts(dedup.Statuses()),
	}
	filter := schemas["Filter"].Properties
	for name, most := range map[string]int{
		"tag": dedup.MaxTag, "order": dedup.MaxKey, "error": dedup.MaxRemark, "fingerprint": dedup.MaxRemark,
		"body": dedup.MaxRemark,
	} {
		filter[name].MaxLength = &most
	}
	mostKeys, longestKey := dedup.MaxListedKeys, dedup.MaxKey
	filter["keys"].MaxItems, filter["keys"].Items.MaxLength = &mostKeys, &longestKey
	filter["reasons"].Items.Enum = words["reason"]
	schemas["OutboxFilter"].Properties["keys"].MaxItems = &mostKeys
	schemas["OutboxFilter"].Properties["state"].Enum = words["state"]
	for _, path := range document.Paths {
		if path.Get == nil {
			continue
		}
		for _, p := range path.Get.Parameters {
			of := p.Schema
			if of.Items != nil {
				of = of.Items
			}
			if of.Enum == nil { // else its tag has them
				of.Enum = words[p.Name]
			}
			p.Schema.Nullable = false
			p.Schema.PrecomputeMessages()
		}
	}
	for _, s := range schemas {
		s.PrecomputeMessages()
	}
}

func texts[T any](all []T) (texts []any) {
	for _, one := range all {
		texts = append(texts, fmt.Sprint(one))
	}
	return texts
}
