package stock

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
)

// lockReservations reads all rows of the plan's orders and locks them, in order of the primary key. At READ COMMITTED
// it locks no gaps.
func (s *session) lockReservations(ctx context.Context, p *plan) error {
	for chunk := range slices.Chunk(p.orders, maxIn) {
		s.text("SELECT order_sn, sku_id, quantity, status FROM stock_reservation FORCE INDEX (PRIMARY) WHERE order_sn IN (")
		for i := range chunk {
			s.comma(i)
			s.binary(chunk[i].sn)
		}
		s.text(") ORDER BY order_sn, sku_id FOR UPDATE")
		var orderSN octets
		var sku, quantity, st integer
		err := s.query(ctx, func() error {
			return p.add(orderSN, row{sku: int64(sku), quantity: int64(quantity), status: status(st), request: nobody})
		}, &orderSN, &sku, &quantity, &st)
		if err != nil {
			return fmt.Errorf("lock the reservations of %d orders from %q: %w", len(chunk), chunk[0].sn, err)
		}
	}
	p.file()
	return nil
}

// insertRefusals inserts insert-first: it waits for a Reserve that has the same row in hand, and a later Reserve waits
// for it. A row that exists stays as it is.
func (s *session) insertRefusals(ctx context.Context, p *plan) error {
	slices.SortFunc(p.refusals, func(a, b refusal) int {
		return cmp.Or(cmp.Compare(p.requests[a.request].OrderSN, p.requests[b.request].OrderSN), cmp.Compare(a.sku, b.sku))
	})
	for chunk := range slices.Chunk(p.refusals, maxIn) {
		s.text("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, rollback_tag, rollback_key, room, " +
			"updated_at) VALUES ")
		for i, f := range chunk {
			r := &p.requests[f.request]
			s.row(i, r.OrderSN, f.sku, f.quantity)
			s.text(",4,")
			s.binary(r.Tag)
			s.text(",")
			s.binary(r.Key)
			s.text(",'',UTC_TIMESTAMP(6))")
		}
		s.text(" ON DUPLICATE KEY UPDATE sku_id = stock_reservation.sku_id")
		if _, err := s.exec(ctx); err != nil {
			first := p.requests[chunk[0].request].OrderSN
			return fmt.Errorf("refuse %d reservations from order %q: %w", len(chunk), first, ofTables(err))
		}
	}
	return nil
}

// mark is one condition of the statement that marks rows released, and what the rows it selects are marked with.
type mark struct {
	hash    uint32 // of what the statement finds in the row, distinct within one statement
	order   string
	sku     int64
	request int
	rows    int
}

// release marks the plan's rows released. An order whose reserved rows all go by one request, as nearly all do, is
// named as a whole, which halves the statement's work; the others are named row by row.
func (s *session) release(ctx context.Context, p *plan) error {
	whole, single := p.marks()
	if err := s.markAll(ctx, p, whole, &wholeOrders); err != nil {
		return err
	}
	return s.markAll(ctx, p, single, &singleRows)
}

func (p *plan) marks() (whole, single []mark) {
	var name []byte
	for i := range p.orders {
		o := &p.orders[i]
		name = append(name[:0], o.sn...)
		if request, n := o.onlyRequest(); request != nobody {
			whole = append(whole, mark{hash: crc32.ChecksumIEEE(name), order: o.sn, request: request, rows: n})
			continue
		}
		for _, r := range o.rows {
			if r.request != nobody {
				name = strconv.AppendInt(append(name[:len(o.sn)], ':'), r.sku, 10)
				hash := crc32.ChecksumIEEE(name)
				single = append(single, mark{hash: hash, order: o.sn, sku: r.sku, request: r.request, rows: 1})
			}
		}
	}
	return whole, single
}

// onlyRequest is the one request that releases all that was reserved, with the number of rows; else nobody.
func (o *order) onlyRequest() (request, rows int) {
	request = nobody
	for _, r := range o.rows {
		switch {
		case r.status == reserved:
			return nobody, 0
		case r.request == nobody:
			continue
		case request != nobody && request != r.request:
			return nobody, 0
		}
		request = r.request
		rows++
	}
	return request, rows
}

// naming is how a statement names rows: by order, or by order and sku.
type naming struct {
	hash  string // the SQL of mark.hash
	where func(s *session, marks []mark)
	max   int // names per statement
}

var (
	wholeOrders = naming{hash: "CRC32(order_sn)", where: whereOrders, max: maxIn}
	singleRows  = naming{hash: "CRC32(CONCAT(order_sn,':',sku_id))", where: whereRows, max: maxIn / 2}
)

func whereOrders(s *session, marks []mark) {
	s.text("order_sn IN (")
	for i := range marks {
		s.comma(i)
		s.binary(marks[i].order)
	}
	s.text(")")
}

// whereRows does not write a list of one pair, for which MariaDB 10.11 scans the table.
func whereRows(s *session, marks []mark) {
	if len(marks) == 1 {
		s.text("order_sn=")
		s.binary(marks[0].order)
		s.text(" AND sku_id=")
		s.number(marks[0].sku)
		return
	}
	s.text("(order_sn,sku_id) IN (")
	for i := range marks {
		s.row(i, marks[i].order, marks[i].sku)
		s.text(")")
	}
	s.text(")")
}

// markAll runs as many statements as the marks need. Within one statement the hashes are distinct, so marks whose
// hashes collide come in different ones.
func (s *session) markAll(ctx context.Context, p *plan, marks []mark, by *naming) error {
	slices.SortFunc(marks, func(a, b mark) int { return cmp.Compare(a.hash, b.hash) })
	for len(marks) > 0 {
		var later []mark
		now := make([]mark, 0, min(len(marks), by.max))
		for _, m := range marks {
			if len(now) == by.max || len(now) > 0 && now[len(now)-1].hash == m.hash {
				later = append(later, m)
				continue
			}
			now = append(now, m)
		}
		if err := s.markReleased(ctx, p, now, by); err != nil {
			return err
		}
		marks = later
	}
	return nil
}

// markReleased moves the marks' rows from reserved to released, in one UPDATE that matches no other row, so that a
// trigger on the table sees the true releases only. Each row finds its own request by a binary search: INTERVAL gives
// the place of the row's hash in a sorted list, and ELT the value at that place.
func (s *session) markReleased(ctx context.Context, p *plan, marks []mark, by *naming) error {
	s.text("UPDATE stock_reservation FORCE INDEX (PRIMARY) SET status=2, rollback_tag=")
	s.choose(by, marks, func(m *mark) string { return p.requests[m.request].Tag })
	s.text(", rollback_key=")
	s.choose(by, marks, func(m *mark) string { return p.requests[m.request].Key })
	// The names take the place of the room, if they fit. Where they do not, the row grows by all of them, which splits its
	// page soon: growing by the few bytes that are too many would have the page put in order again and again, and takes
	// half as long again. Assignments are made from left to right.
	s.text(", room=IF(LENGTH(rollback_tag)+LENGTH(rollback_key)+2<=LENGTH(room),'',room)")
	s.text(", updated_at=UTC_TIMESTAMP(6) WHERE status=1 AND ")
	by.where(s, marks)
	want := 0
	for i := range marks {
		want += marks[i].rows
	}
	got, err := s.exec(ctx)
	if err != nil {
		return fmt.Errorf("release %d reservations: %w", want, ofTables(err))
	}
	if got != want {
		return fmt.Errorf("release %d reservations: %d rows changed: %w", want, got, ErrChanged)
	}
	return nil
}

// choose writes an expression for the value of a row's mark.
func (s *session) choose(by *naming, marks []mark, value func(*mark) string) {
	same := true
	for i := range marks {
		same = same && value(&marks[i]) == value(&marks[0])
	}
	if same {
		s.binary(value(&marks[0]))
		return
	}
	s.text("ELT(INTERVAL(")
	s.text(by.hash)
	for i := range marks {
		s.text(",")
		s.number(int64(marks[i].hash))
	}
	s.text(")")
	for i := range marks {
		s.text(",")
		s.binary(value(&marks[i]))
	}
	s.text(")")
}
