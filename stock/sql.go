package stock

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"gorm.io/gorm"
)

// Statements carry their values as literals: text and keys as hexadecimal strings (which are binary strings to both
// databases, need no escaping and mean the same under every sql_mode and character set), numbers as digits. So they
// need no placeholders, no prepare round trip and no interpolation by the driver.
//
// Every statement on these tables forces the primary key. With fresh or misleading statistics the optimizer may
// otherwise scan the table, which waits for the locks of rows that nobody asked for.

// maxIn bounds the values of one IN list. MariaDB turns a list of 1,000 values or more into a join with a temporary
// table (in_predicate_conversion_threshold), which is slower and locks in another order.
const maxIn = 900

// statementBytes is about what one message takes in the longest statement.
const statementBytes = 160

// session runs statements in the caller's transaction and keeps the buffer they are written in.
type session struct {
	pool gorm.ConnPool
	buf  []byte
}

func (s *session) text(sql string) { s.buf = append(s.buf, sql...) }
func (s *session) number(n int64)  { s.buf = strconv.AppendInt(s.buf, n, 10) }

// comma separates the values of a list.
func (s *session) comma(i int) {
	if i > 0 {
		s.buf = append(s.buf, ',')
	}
}

// row begins the row of an order in a list: (order,number,…
func (s *session) row(i int, order string, numbers ...int64) {
	s.comma(i)
	s.text("(")
	s.binary(order)
	for _, n := range numbers {
		s.text(",")
		s.number(n)
	}
}

func (s *session) binary(str string) {
	const digits = "0123456789abcdef"
	s.buf = append(s.buf, "x'"...)
	for i := range len(str) {
		s.buf = append(s.buf, digits[str[i]>>4], digits[str[i]&15])
	}
	s.buf = append(s.buf, '\'')
}

// exec runs the statement in the buffer and empties it. The count is of rows changed or matched, by the setting of the
// connection; the statements here change every row that they match.
func (s *session) exec(ctx context.Context) (int, error) {
	res, err := s.pool.ExecContext(ctx, string(s.buf))
	s.buf = s.buf[:0]
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// query runs the statement in the buffer, empties it and scans each row into dest, calling each after it.
func (s *session) query(ctx context.Context, each func() error, dest ...any) (err error) {
	rows, err := s.pool.QueryContext(ctx, string(s.buf))
	s.buf = s.buf[:0]
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		if err := each(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// integer scans what either protocol sends without the detour of database/sql over text.
type integer int64

// Scan takes an int64 or its digits.
func (n *integer) Scan(src any) error {
	switch v := src.(type) {
	case int64:
		*n = integer(v)
		return nil
	case []byte:
		i, err := strconv.ParseInt(string(v), 10, 64)
		*n = integer(i)
		return err
	}
	return fmt.Errorf("got %T, want an integer", src)
}

// octets scans bytes that are valid until the next row.
type octets []byte

// Scan keeps the driver's bytes; nil for NULL.
func (o *octets) Scan(src any) error {
	v, ok := src.([]byte)
	if !ok && src != nil {
		return fmt.Errorf("got %T, want bytes", src)
	}
	*o = v
	return nil
}
