// Package stock is the handler of stock-rollback messages: it decodes them, hands them to the domain, and says in the
// engine's words what became of each. It must not decide what a release is, which the domain does (package stock at
// the top), nor what becomes of a delivery, which the engine does.
package stock

import (
	"context"
	"errors"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/stock"
)

// handler is a [consumer.Handler] and [consumer.Validator].
type handler struct {
	options stock.Options
	run     func(context.Context, *gorm.DB, []stock.Request, stock.Options) error
}

// New makes the handler. With emit each message that gives something back has an [EventReleased] in the outbox.
func New(o stock.Options, emit bool) consumer.Handler {
	o.Others = true
	if emit {
		return &handler{o, rollback}
	}
	return &handler{o, stock.Rollback}
}

// Validate decodes the body once, for Handle.
func (h *handler) Validate(m *consumer.Message) error {
	request, err := decode(m.Body)
	if err != nil {
		return err
	}
	request.Tag, request.Key = m.Tag, m.Key
	m.Value = request
	return nil
}

// Handle gives the stock of all messages back.
func (h *handler) Handle(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	requests := make([]stock.Request, len(msgs))
	for i := range msgs {
		requests[i] = msgs[i].Value.(stock.Request) // Validate left it: the engine hands on nothing that it refused
	}
	err := h.run(ctx, tx, requests, h.options)
	if errors.Is(err, stock.ErrChanged) {
		return consumer.Contention(err)
	}
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
	if batch.OthersReleased {
		return consumer.Except(blamed...)
	}
	return consumer.Blame(blamed...)
}

// OrderOf is the order that a stock-rollback message is about; false when the body cannot be read.
func OrderOf(body []byte) (orderSN string, ok bool) {
	request, err := decode(body)
	return request.OrderSN, err == nil
}
