package api

import (
	"context"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/outbox"
)

// OutboxChoice chooses messages of the outbox. All that is named must hold.
type OutboxChoice struct {
	Key   []string  `query:"key,explode" maxItems:"100"`
	Tag   string    `query:"tag" maxLength:"600"`
	State string    `query:"state"`
	Since time.Time `query:"since"`
	Until time.Time `query:"until"`
}

func (c OutboxChoice) filter() outbox.Filter {
	return outbox.Filter{Keys: c.Key, Tag: c.Tag, State: outbox.State(c.State), Since: c.Since, Until: c.Until}
}

func (a *API) listOutbox(ctx context.Context, in *struct {
	OutboxChoice
	Paging
}) (view.Page[view.OutboxRow], error) {
	return a.view.OutboxRows(ctx, in.filter(), in.After, in.Limit)
}

// OutboxMessages are all messages of the outbox with a key.
type OutboxMessages struct {
	Messages []view.OutboxRow `json:"messages"`
}

func (a *API) getOutboxMessage(ctx context.Context, in *struct {
	Key string `query:"key" required:"true" maxLength:"2000"`
	Tag string `query:"tag" maxLength:"600"`
}) (OutboxMessages, error) {
	all, err := a.view.OutboxMessage(ctx, in.Tag, in.Key)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%w: the outbox has no message with the key %q", view.ErrNothing, in.Key)
	}
	return OutboxMessages{all}, err
}

func (a *API) previewOutbox(ctx context.Context, in *struct {
	Kind string `query:"kind" required:"true" enum:"outbox_retry,outbox_drop"`
	OutboxChoice
	All   bool `query:"all"`
	Force bool `query:"force"`
}) (view.OutboxPreview, error) {
	return a.view.PreviewOutbox(ctx, operator.OutboxRequest{
		Kind: operator.Kind(in.Kind), Filter: in.filter(), All: in.All, Force: in.Force,
	})
}
