package legacyimport

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

const (
	// pageRows is how many rows a page, and a transaction, has at most.
	pageRows = 1000
	// inlineBody is the length up to which the body of a row that was left open comes with its page; a longer one is
	// fetched when it is needed.
	inlineBody = 4096
	// chunkBodies bounds the bodies that are in memory at a time: a page ends early when it has more.
	chunkBodies = 16 << 20
)

// oldRow is a row of the old table as it was read.
type oldRow struct {
	at                  [][]byte // its primary key
	group, tag, key     []byte   // nil: NULL
	status, times, time sql.NullString
	id, remark          []byte
	bodyLength          sql.NullInt64
	hash                []byte
	doubtful            bool
	body                []byte // while it is short, and the row was left open
}

// bodyText is the body as bytes: those of its UTF-8 text, or as they are.
func (s *shape) bodyText() string {
	c := s.columns[colBody]
	switch {
	case !s.has(colBody):
		return "NULL"
	case c.isBinary():
		return c.quoted()
	case c.isText():
		return "CONVERT(" + c.quoted() + " USING utf8mb4)"
	}
	return "CONVERT(" + c.number() + " USING utf8mb4)"
}

// doubt is the condition under which a column may hold other bytes than the message had: cut at the column's end by a
// server that is not strict, without its trailing spaces, sorted anew, or with marks for what its charset does not
// have.
func (s *shape) doubt() string {
	c := s.columns[colBody]
	switch {
	case !s.has(colBody):
		return "FALSE"
	case c.kind == "char" || c.kind == "binary" || !c.isText() && !c.isBinary():
		return "TRUE"
	}
	full := fmt.Sprintf("LENGTH(%s) > %d", c.quoted(), c.octets-4) // a character has four bytes at most
	if c.kind == "varchar" {
		full = fmt.Sprintf("CHAR_LENGTH(%s) >= %d", c.quoted(), c.most)
	} else if c.isBinary() {
		full = fmt.Sprintf("LENGTH(%s) >= %d", c.quoted(), c.octets)
	}
	if c.isText() && !strings.HasPrefix(c.charset, "utf8") {
		full += " OR LOCATE('?', " + c.quoted() + ") > 0"
	}
	return full
}

func (s *shape) timeText() string {
	c := s.columns[colTime]
	if c.kind == "timestamp" || c.kind == "datetime" {
		return "DATE_FORMAT(" + c.quoted() + ", '%Y-%m-%d %H:%i:%s.%f')"
	}
	return c.text()
}

// rowText are the columns by which a row of a page begins, in either form of one.
func (s *shape) rowText() string {
	c := s.columns
	return strings.Join([]string{c[colGroup].text(), c[colTag].text(), c[colKey].text(), c[colStatus].number(),
		c[colTimes].number(), s.timeText(), c[colID].text()}, ", ")
}

// wholeText are the columns of an oldRow.
func (s *shape) wholeText() string {
	body := s.bodyText()
	return fmt.Sprintf("%s, %s, LENGTH(%s), UNHEX(SHA2(%s, 256)), COALESCE(%s, FALSE), "+
		"IF(%s = '1' OR LENGTH(%s) > %d, NULL, %s)", s.rowText(), s.columns[colRemark].text(), body, body, s.doubt(),
		s.columns[colStatus].number(), body, inlineBody, body)
}

// pageText is the statement for the page behind a row, of these columns behind those of the primary key. The index is
// forced, because statistics may say that all of a young table is read faster; and the condition is written out,
// because the servers read a comparison of whole rows without the index.
func (s *shape) pageText(columns string, after [][]byte, limit int) (text string, args []any, err error) {
	var names, texts, behind []string
	for _, c := range s.primary {
		names, texts = append(names, c.quoted()), append(texts, c.text())
	}
	where := ""
	if after != nil {
		equal, values, err := s.at(after)
		if err != nil {
			return "", nil, err
		}
		for i, name := range names {
			behind = append(behind, strings.Join(append(slices.Clone(equal[:i]), name+" > ?"), " AND "))
			args = append(args, values[:i+1]...)
		}
		where = " WHERE (" + strings.Join(behind, ") OR (") + ")"
	}
	return fmt.Sprintf("SELECT %s, %s FROM %s FORCE INDEX (PRIMARY)%s ORDER BY %s LIMIT %d", strings.Join(texts, ", "),
		columns, s.quoted(), where, strings.Join(names, ", "), limit), args, nil
}

// at are the conditions that a row has this primary key, and what stands in them.
func (s *shape) at(key [][]byte) (equal []string, args []any, _ error) {
	for i, c := range s.primary {
		arg, err := c.argument(key[i])
		if err != nil {
			return nil, nil, err
		}
		equal, args = append(equal, c.quoted()+" = ?"), append(args, arg)
	}
	return equal, args, nil
}

// argument is a value of the column as it is compared with it: text by the column's collation, else exactly.
func (c column) argument(value []byte) (any, error) {
	switch {
	case c.isText():
		return string(value), nil
	case c.isBinary():
		return value, nil
	}
	if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
		return n, nil
	}
	n, err := strconv.ParseUint(string(value), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%s is %q, which is no integer", c.name, value)
	}
	return n, nil
}

// pages reads the table behind a row, in pages of so many rows at most. Each row is visited, which gives its primary
// key, and behind each page done is called, whose error ends it. It locks nothing.
func (s *shape) pages(
	ctx context.Context, db *sql.DB, columns string, after [][]byte, size int,
	visit func(scan func(...any) error) (key [][]byte, err error), done func(began time.Time, last bool) error,
) error {
	for {
		began, n := time.Now(), 0
		text, args, err := s.pageText(columns, after, size)
		if err != nil {
			return err
		}
		after = make([][]byte, len(s.primary))
		if err := s.each(ctx, db, "a page", func(scan func(...any) error) error {
			key, err := visit(scan)
			for i := range after {
				after[i] = append(after[i][:0], key[i]...)
			}
			n++
			return err
		}, text, args...); err != nil {
			return err
		}
		if err := done(began, n < size); err != nil || n < size {
			return err
		}
	}
}

// readRow reads a row of the columns of wholeText.
func (s *shape) readRow(scan func(...any) error) (o oldRow, err error) {
	o.at = make([][]byte, len(s.primary))
	var into []any
	for i := range o.at {
		into = append(into, &o.at[i])
	}
	err = scan(append(into, &o.group, &o.tag, &o.key, &o.status, &o.times, &o.time, &o.id, &o.remark, &o.bodyLength,
		&o.hash, &o.doubtful, &o.body)...)
	return o, err
}

// readBody fetches the beginning of a long body, as much as the log keeps.
func (s *shape) readBody(ctx context.Context, db *sql.DB, at [][]byte) (body []byte, err error) {
	equal, args, err := s.at(at)
	if err != nil {
		return nil, err
	}
	err = db.QueryRowContext(ctx, fmt.Sprintf("SELECT LEFT(CAST(%s AS BINARY), %d) FROM %s WHERE %s", s.bodyText(),
		dedup.MaxBody, s.quoted(), strings.Join(equal, " AND ")), args...).Scan(&body)
	if err != nil {
		return nil, fmt.Errorf("read a body of %s: %w", s.name(), err)
	}
	return body, nil
}
