package legacyimport

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

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
	return "CONVERT(CAST(" + c.quoted() + " AS CHAR) USING utf8mb4)"
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

// optional is a column's expression, NULL where the table lacks it.
func (s *shape) optional(name string) string {
	c, ok := s.columns[name]
	if !ok {
		return "NULL"
	}
	return c.text()
}

func (s *shape) timeText() string {
	c := s.columns[colTime]
	if c.kind == "timestamp" || c.kind == "datetime" {
		return "DATE_FORMAT(" + c.quoted() + ", '%Y-%m-%d %H:%i:%s.%f')"
	}
	return s.optional(colTime)
}

// rowText are the columns by which a row of a page begins, in either form of one.
func (s *shape) rowText() string {
	return fmt.Sprintf("%s, %s, %s, CAST(%s AS CHAR), %s, %s, %s", s.columns[colGroup].text(), s.columns[colTag].text(),
		s.columns[colKey].text(), s.columns[colStatus].quoted(), s.optionalNumber(colTimes), s.timeText(), s.optional(colID))
}

// wholeText are the columns of an oldRow.
func (s *shape) wholeText() string {
	body := s.bodyText()
	return fmt.Sprintf("%s, %s, LENGTH(%s), UNHEX(SHA2(%s, 256)), COALESCE(%s, FALSE), "+
		"IF(CAST(%s AS CHAR) = '1' OR LENGTH(%s) > %d, NULL, %s)", s.rowText(), s.optional(colRemark), body, body, s.doubt(),
		s.columns[colStatus].quoted(), body, inlineBody, body)
}

// pageText is the statement for the page behind a row, of these columns behind those of the primary key. The index is
// forced, because statistics may say that all of a young table is read faster; and the condition is written out,
// because the servers read a comparison of whole rows without the index.
func (s *shape) pageText(columns string, after [][]byte, limit int) (text string, args []any, err error) {
	var b strings.Builder
	b.WriteString("SELECT ")
	names := make([]string, len(s.primary))
	for i, c := range s.primary {
		names[i] = c.quoted()
		b.WriteString(c.text() + ", ")
	}
	b.WriteString(columns + " FROM " + s.quoted() + " FORCE INDEX (PRIMARY)")
	if after != nil {
		b.WriteString(" WHERE ")
		for n := len(s.primary); n > 0; n-- {
			if n < len(s.primary) {
				b.WriteString(" OR ")
			}
			b.WriteString("(")
			for i := range n {
				arg, err := s.primary[i].argument(after[i])
				if err != nil {
					return "", nil, err
				}
				args = append(args, arg)
				if i < n-1 {
					b.WriteString(names[i] + " = ? AND ")
				} else {
					b.WriteString(names[i] + " > ?")
				}
			}
			b.WriteString(")")
		}
	}
	fmt.Fprintf(&b, " ORDER BY %s LIMIT %d", strings.Join(names, ", "), limit)
	return b.String(), args, nil
}

func (s *shape) optionalNumber(name string) string {
	if !s.has(name) {
		return "NULL"
	}
	return "CAST(" + s.columns[name].quoted() + " AS CHAR)"
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

// readPage reads the rows behind one. It locks nothing.
func (s *shape) readPage(ctx context.Context, db *sql.DB, after [][]byte, limit int) (page []oldRow, err error) {
	text, args, err := s.pageText(s.wholeText(), after, limit)
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, fmt.Errorf("read a page of %s: %w", s.name(), err)
	}
	defer rows.Close()
	for rows.Next() {
		o := oldRow{at: make([][]byte, len(s.primary))}
		into := make([]any, 0, len(s.primary)+12)
		for i := range o.at {
			into = append(into, &o.at[i])
		}
		into = append(into, &o.group, &o.tag, &o.key, &o.status, &o.times, &o.time, &o.id, &o.remark, &o.bodyLength, &o.hash,
			&o.doubtful, &o.body)
		if err := rows.Scan(into...); err != nil {
			return nil, fmt.Errorf("read a page of %s: %w", s.name(), err)
		}
		page = append(page, o)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read a page of %s: %w", s.name(), err)
	}
	return page, nil
}

// readBody fetches the beginning of a long body, as much as the log keeps.
func (s *shape) readBody(ctx context.Context, db *sql.DB, at [][]byte) (body []byte, err error) {
	var where strings.Builder
	var args []any
	for i, c := range s.primary {
		arg, err := c.argument(at[i])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			where.WriteString(" AND ")
		}
		where.WriteString(c.quoted() + " = ?")
		args = append(args, arg)
	}
	err = db.QueryRowContext(ctx, fmt.Sprintf("SELECT LEFT(CAST(%s AS BINARY), %d) FROM %s WHERE %s", s.bodyText(),
		dedup.MaxBody, s.quoted(), where.String()), args...).Scan(&body)
	if err != nil {
		return nil, fmt.Errorf("read a body of %s: %w", s.name(), err)
	}
	return body, nil
}
