package stock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// restock adds the quantities of the plan's moves to the stock, summed by sku, in order of sku_id.
func (s *session) restock(ctx context.Context, p *plan) error {
	for chunk := range slices.Chunk(p.sums(), maxIn) {
		changed, err := s.changeAmounts(ctx, chunk, "+")
		if err != nil {
			return fmt.Errorf("add to the stock of %d skus from %d: %w", len(chunk), chunk[0].SKU, err)
		}
		if changed != len(chunk) {
			return s.blameStock(ctx, p, chunk)
		}
	}
	return nil
}

// sums adds up the moves by sku, sorted.
func (p *plan) sums() []Item {
	sums := make([]Item, len(p.moves))
	for i, m := range p.moves {
		sums[i] = Item{SKU: m.sku, Quantity: m.quantity}
	}
	sortItems(sums)
	n := 0
	for _, it := range sums {
		if n > 0 && sums[n-1].SKU == it.SKU {
			sums[n-1].Quantity += it.Quantity
			continue
		}
		sums[n] = it
		n++
	}
	return sums[:n]
}

func sortItems(items []Item) {
	slices.SortFunc(items, func(a, b Item) int { return cmp.Compare(a.SKU, b.SKU) })
}

// changeAmounts adds items (sorted, distinct) to the stock, or takes them off, with one UPDATE, and returns how many
// rows it changed. Each row finds its quantity by a binary search, as in markReleased. It skips a row that has too much
// to add to, or too little to take from.
func (s *session) changeAmounts(ctx context.Context, items []Item, sign string) (int, error) {
	s.text("UPDATE stock FORCE INDEX (PRIMARY) SET amount=amount")
	s.text(sign)
	s.quantity(items)
	s.text(", version=version+1 WHERE sku_id IN (")
	s.skus(items)
	if sign == "-" {
		s.text(") AND amount>=")
		s.quantity(items)
	} else {
		s.text(") AND amount<=")
		s.number(maxAmount)
	}
	return s.exec(ctx)
}

// quantity writes an expression for the quantity of a row's sku.
func (s *session) quantity(items []Item) {
	if len(items) == 1 {
		s.number(items[0].Quantity)
		return
	}
	s.text("CAST(ELT(INTERVAL(sku_id")
	for _, it := range items {
		s.text(",")
		s.number(it.SKU)
	}
	s.text(")")
	for _, it := range items {
		s.text(",")
		s.number(it.Quantity)
	}
	s.text(") AS SIGNED)")
}

func (s *session) skus(items []Item) {
	for i, it := range items {
		s.comma(i)
		s.number(it.SKU)
	}
}

// amounts looks up what the stock has of items; a sku without a row is absent.
func (s *session) amounts(ctx context.Context, items []Item) (map[int64]int64, error) {
	s.text("SELECT sku_id, amount FROM stock FORCE INDEX (PRIMARY) WHERE sku_id IN (")
	s.skus(items)
	s.text(") ORDER BY sku_id FOR UPDATE")
	found := make(map[int64]int64, len(items))
	var sku, amount integer
	err := s.query(ctx, func() error { found[int64(sku)] = int64(amount); return nil }, &sku, &amount)
	if err != nil {
		return nil, fmt.Errorf("look up the stock of %d skus from %d: %w", len(items), items[0].SKU, err)
	}
	return found, nil
}

// blameStock finds out which skus restock skipped and blames the requests that release them. A row that reached the
// bound by this very UPDATE is blamed too, since nothing tells the two apart; alone, its request succeeds.
func (s *session) blameStock(ctx context.Context, p *plan, items []Item) error {
	amounts, err := s.amounts(ctx, items)
	if err != nil {
		return err
	}
	wrong := make(map[int64]error)
	for _, it := range items {
		amount, known := amounts[it.SKU]
		switch {
		case !known:
			wrong[it.SKU] = fmt.Errorf("sku %d: %w; if it should have a row: "+
				"INSERT INTO stock (sku_id, amount) VALUES (%d, 0)", it.SKU, ErrUnknownSKU, it.SKU)
		case amount > maxAmount:
			wrong[it.SKU] = fmt.Errorf("sku %d: %w: it has %d, at most %d", it.SKU, ErrOverflow, amount, int64(maxAmount))
		}
	}
	for _, m := range p.moves {
		if err := wrong[m.sku]; err != nil {
			p.accuse(m.request, fmt.Errorf("order %q %w", p.requests[m.request].OrderSN, err))
		}
	}
	if err := p.verdict(); err != nil {
		return err
	}
	return fmt.Errorf("add to the stock of %d skus from %d: fewer rows changed: %w", len(items), items[0].SKU, ErrChanged)
}
