package stock

import (
	"cmp"
	"fmt"
	"slices"
)

// plan is what a Rollback is going to write. It is pure: rows in, moves out, no I/O.
type plan struct {
	requests []Request
	empty    EmptyPolicy

	orders []order        // distinct, sorted by order_sn: the order of the primary key
	byName map[string]int // index into orders
	rows   []row          // of all orders, as the database gave them; each order has a part

	moves    []move    // reserved → released
	refusals []refusal // rows to insert as refused
	blame    []RequestError
}

// order is one order with its reservation rows, sorted by sku.
type order struct {
	sn       string
	from, to int   // while rows are still coming: its part of plan.rows
	rows     []row // from file on
}

type row struct {
	sku      int64
	quantity int64
	status   status
	request  int // the request of this plan that moves it to released; else nobody
}

const nobody = -1

// move releases one row.
type move struct {
	request, order int
	sku, quantity  int64
}

// refusal is a row to insert.
type refusal struct {
	request       int
	sku, quantity int64
}

func newPlan(requests []Request, empty EmptyPolicy) *plan {
	p := &plan{requests: requests, empty: empty, byName: make(map[string]int, len(requests)),
		rows: make([]row, 0, 2*len(requests))}
	for i := range requests {
		p.byName[requests[i].OrderSN] = 0
	}
	p.orders = make([]order, 0, len(p.byName))
	for sn := range p.byName {
		p.orders = append(p.orders, order{sn: sn})
	}
	slices.SortFunc(p.orders, func(a, b order) int { return cmp.Compare(a.sn, b.sn) })
	for i := range p.orders {
		p.byName[p.orders[i].sn] = i
	}
	return p
}

// check blames the requests that no row can match.
func (p *plan) check() error {
	for i := range p.requests {
		if err := p.requests[i].check(); err != nil {
			p.accuse(i, err)
		}
	}
	return p.verdict()
}

// reset forgets the rows, for another look at them.
func (p *plan) reset() {
	for i := range p.orders {
		p.orders[i] = order{sn: p.orders[i].sn}
	}
	p.rows = p.rows[:0]
	p.moves, p.refusals = p.moves[:0], p.refusals[:0]
}

// decide goes through the requests in their order. A request that is blamed moves nothing, so a later one of the same
// order is judged as if it were alone.
func (p *plan) decide() error {
	for i := range p.requests {
		moves, refusals := len(p.moves), len(p.refusals)
		if err := p.decideOne(i); err != nil {
			p.moves, p.refusals = p.moves[:moves], p.refusals[:refusals]
			p.accuse(i, err)
			continue
		}
		for _, m := range p.moves[moves:] {
			r := p.orders[m.order].find(m.sku)
			r.status, r.request = released, i
		}
	}
	return p.verdict()
}

func (p *plan) decideOne(i int) error {
	at := p.byName[p.requests[i].OrderSN]
	if p.requests[i].Items == nil {
		return p.decideOrder(i, at)
	}
	var failed error
	for _, it := range p.requests[i].Items {
		// A permanent error wins over one that a retry may cure: the retry would only find the permanent one.
		if err := p.decideItem(i, at, it); err != nil && (failed == nil || !permanent(failed)) {
			failed = err
		}
	}
	return failed
}

func (p *plan) decideItem(i, at int, it Item) error {
	o := &p.orders[at]
	r := o.find(it.SKU)
	switch {
	case r == nil && o.find(wholeOrder) != nil:
		return nil // the whole order was refused
	case r == nil:
		return p.missing(i, it)
	case r.quantity != it.Quantity && r.status != refused:
		return fmt.Errorf("order %q sku %d: %w: message has %d, reserved are %d", o.sn, it.SKU, ErrQuantity, it.Quantity,
			r.quantity)
	case r.status == released, r.status == refused:
		return nil
	case r.status == deducted:
		return fmt.Errorf("order %q sku %d: %w", o.sn, it.SKU, ErrDeducted)
	case r.status != reserved:
		return fmt.Errorf("order %q sku %d: %w: reservation has unknown %v", o.sn, it.SKU, ErrInvalid, r.status)
	}
	p.moves = append(p.moves, move{request: i, order: at, sku: it.SKU, quantity: r.quantity})
	return nil
}

// decideOrder releases whatever is still reserved. An order that is deducted altogether is blamed; rows deducted beside
// reserved or released ones are simply not reserved any more. A policy that refuses marks the order, whatever it has:
// further parts of it may still come.
func (p *plan) decideOrder(i, at int) error {
	o := &p.orders[at]
	if len(o.rows) == 0 {
		return p.missing(i, Item{SKU: wholeOrder})
	}
	gone := 0
	for _, r := range o.rows {
		switch {
		case r.status == reserved:
			p.moves = append(p.moves, move{request: i, order: at, sku: r.sku, quantity: r.quantity})
		case r.status == deducted, r.sku == wholeOrder:
			gone++
		}
	}
	if gone == len(o.rows) && o.rows[gone-1].sku != wholeOrder { // the mark comes first, and is none of its goods
		return fmt.Errorf("order %q: %w", o.sn, ErrDeducted)
	}
	if p.empty == Refuse && o.find(wholeOrder) == nil {
		return p.missing(i, Item{SKU: wholeOrder})
	}
	return nil
}

// tell tells of the moves. Those of a request stand one after the other.
func (p *plan) tell(released func(request int, items []Item)) {
	for rest := p.moves; len(rest) > 0; {
		var items []Item
		request := rest[0].request
		for len(rest) > 0 && rest[0].request == request {
			items, rest = append(items, Item{SKU: rest[0].sku, Quantity: rest[0].quantity}), rest[1:]
		}
		sortItems(items)
		released(request, items)
	}
}

func (p *plan) missing(i int, it Item) error {
	if p.empty == Refuse {
		p.refusals = append(p.refusals, refusal{request: i, sku: it.SKU, quantity: it.Quantity})
		return nil
	}
	sn := p.requests[i].OrderSN
	if it.SKU == wholeOrder {
		return fmt.Errorf("order %q: %w", sn, ErrNoReservation)
	}
	return fmt.Errorf("order %q sku %d: %w", sn, it.SKU, ErrNoReservation)
}

// accuse blames a request, for what is found first: whoever accuses goes by the order of requests.
func (p *plan) accuse(i int, err error) {
	if n := len(p.blame); n == 0 || p.blame[n-1].Index != i {
		p.blame = append(p.blame, RequestError{Index: i, Err: err, Permanent: permanent(err)})
	}
}

func (p *plan) verdict() error {
	if len(p.blame) == 0 {
		return nil
	}
	slices.SortFunc(p.blame, func(a, b RequestError) int { return cmp.Compare(a.Index, b.Index) })
	return &BatchError{Requests: p.blame}
}

// releasesOthers reports whether what is left besides the blamed can go on at once. Refusals cannot: to write them
// means to look at the rows again, and who is to blame then may be somebody else.
func (p *plan) releasesOthers() bool {
	return len(p.refusals) == 0 && len(p.blame) < len(p.requests)
}

// add takes a row; rows come in order of the primary key, those of one order after each other.
func (p *plan) add(orderSN []byte, r row) error {
	at, known := p.byName[string(orderSN)]
	if !known {
		return fmt.Errorf("look up reservations: the database answered with order %q, which nobody asked for", orderSN)
	}
	o := &p.orders[at]
	if o.to == 0 {
		o.from = len(p.rows)
	}
	p.rows = append(p.rows, r)
	o.to = len(p.rows)
	return nil
}

// file gives each order its rows when all have come, since growing p.rows moves them.
func (p *plan) file() {
	for i := range p.orders {
		o := &p.orders[i]
		o.rows = p.rows[o.from:o.to]
	}
}

// find is the row of a sku, nil without one.
func (o *order) find(sku int64) *row {
	i, found := slices.BinarySearchFunc(o.rows, sku, func(r row, sku int64) int { return cmp.Compare(r.sku, sku) })
	if !found {
		return nil
	}
	return &o.rows[i]
}
