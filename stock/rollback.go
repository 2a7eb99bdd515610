package stock

import (
	"context"
	"fmt"

	"gorm.io/gorm"
)

// Rollback gives back what the requests name, all in tx, which the caller commits. Reservations are locked and checked
// before anything is written; the stock rows, which many orders share, are written last, so that they are locked for
// the shortest time, and in order of sku_id, so that rollbacks do not deadlock each other.
//
// What was released or refused before, by whatever message or by an earlier request of the same call, is done: no
// effect and no error. A request takes effect with all of its items or none. Requests that cannot take effect are
// returned as a [*BatchError]; any other error is the database's, or says that the rows changed under the transaction.
// After any error the caller must roll back, but for a BatchError which says that the others are released.
func Rollback(ctx context.Context, tx *gorm.DB, requests []Request, o Options) error {
	s := session{pool: tx.Statement.ConnPool, buf: make([]byte, 0, statementBytes*len(requests))}
	p := newPlan(requests, o.Empty)
	if err := p.check(); err != nil {
		return err
	}
	if err := s.lockReservations(ctx, p); err != nil {
		return err
	}
	blame := p.decide()
	switch {
	case blame != nil && !(o.Others && p.releasesOthers()):
		return blame
	case len(p.refusals) > 0:
		if err := s.refuse(ctx, p); err != nil {
			return err
		}
	}
	if err := s.release(ctx, p); err != nil {
		return err
	}
	if err := s.restock(ctx, p); err != nil {
		return err
	}
	if o.Released != nil {
		p.tell(o.Released)
	}
	if blame != nil {
		return &BatchError{Requests: p.blame, OthersReleased: true}
	}
	return nil
}

// refuse writes the refusals before anything else and decides anew. A reservation that was committed since the first
// look makes its refusal a no-op and is released like any other; one that comes later meets the refusal.
func (s *session) refuse(ctx context.Context, p *plan) error {
	if err := s.insertRefusals(ctx, p); err != nil {
		return err
	}
	p.reset()
	if err := s.lockReservations(ctx, p); err != nil {
		return err
	}
	if err := p.decide(); err != nil {
		return err
	}
	if len(p.refusals) > 0 {
		r := p.refusals[0]
		return fmt.Errorf("refuse order %q: the row just written is gone", p.requests[r.request].OrderSN)
	}
	return nil
}
