package daemon

import (
	"context"
	"errors"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/stock"
)

// stockHandler hands stock-rollback messages to package stock and says in the engine's words what became of them.
type stockHandler struct{ options stock.Options }

func newStockHandler(emptyRollback string) consumer.Handler {
	o := stock.Options{Empty: stock.Retry}
	if emptyRollback == config.EmptyRollbackRefuse {
		o.Empty = stock.Refuse
	}
	return &stockHandler{o}
}

// Validate decodes the body once, for Handle.
func (h *stockHandler) Validate(m *consumer.Message) error {
	request, err := decode(m.Body)
	if err != nil {
		return err
	}
	request.Tag, request.Key = m.Tag, m.Name
	m.Value = request
	return nil
}

// Handle gives the stock of all messages back.
func (h *stockHandler) Handle(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	requests := make([]stock.Request, len(msgs))
	for i := range msgs {
		requests[i] = msgs[i].Value.(stock.Request) // Validate left it: the engine hands on nothing that it refused
	}
	err := stock.Rollback(ctx, tx, requests, h.options)
	batch, ok := errors.AsType[*stock.BatchError](err)
	if !ok {
		return err
	}
	blamed := make([]consumer.BlamedMessage, len(batch.Requests))
	for i, f := range batch.Requests {
		blamed[i] = consumer.BlamedMessage{Index: f.Index, Err: f.Err}
		if f.Permanent {
			blamed[i].Err = consumer.Permanent(f.Err)
		}
	}
	return consumer.Blame(blamed...)
}
