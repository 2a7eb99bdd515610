package legacyimport

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

const (
	// pageRows is how many rows a page, and a transaction, has at most.
	pageRows = 1000
	// pageBytes bounds the rows that are in memory at a time: a page that has more ends there.
	pageBytes = 16 << 20
)

// errFull ends the reading of a page that has more than pageBytes.
var errFull = errors.New("the page is full")

// Where the columns of a row stand, behind those of the primary key: seven that all pages have, and the others of a
// page that is taken over. What is NULL is nil.
const (
	atGroup = iota
	atTag
	atKey
	atStatus
	atTimes
	atTime
	atID
	atRemark
	atHash     // of the body
	atDoubtful // 1: the column may not hold all of it
	atBody     // of a row that was left open, a byte more than the log keeps
)

// common are the columns that all pages have.
func (s *shape) common() (texts []string) {
	for _, name := range []string{colGroup, colTag, colKey, colStatus, colTimes, colTime, colID} {
		texts = append(texts, s.text(name))
	}
	return texts
}

// whole are the columns of a page that is taken over.
func (s *shape) whole() []string {
	body := s.text(colBody)
	return append(s.common(), s.text(colRemark), "UNHEX(SHA2("+body+", 256))", "COALESCE("+s.doubt()+", FALSE)",
		fmt.Sprintf("IF(CAST(%s AS BINARY) = '1', NULL, LEFT(CAST(%s AS BINARY), %d))", // as text '1 ' is '1' too
			s.text(colStatus), body, dedup.MaxBody+1))
}

// text is a column as it is read: as UTF-8 text, or as bytes when it holds bytes; NULL where the table lacks it.
func (s *shape) text(name string) string {
	c := s.columns[strings.ToLower(name)]
	switch {
	case c.name == "":
		return "NULL"
	case name == colBody && !c.isBinary():
		return "CONVERT(" + quoted(c.name) + " USING utf8mb4)"
	case name == colTime && c.isMoment():
		return "DATE_FORMAT(" + quoted(c.name) + ", '%Y-%m-%d %H:%i:%s.%f')"
	}
	return c.text()
}

func (c column) text() string {
	if c.isText() || c.isBinary() {
		return quoted(c.name)
	}
	return "CAST(" + quoted(c.name) + " AS CHAR)"
}

// doubt is the condition under which a column may hold other bytes than the message had: cut at the column's end by a
// server that is not strict, without its trailing spaces, sorted anew, or with marks for what its charset does not
// have.
func (s *shape) doubt() string {
	c := s.columns[colBody]
	length, full := "LENGTH", c.octets-3 // a character has four bytes at most
	switch {
	case c.kind == "char", c.kind == "binary", !c.isText() && !c.isBinary():
		return "TRUE"
	case c.kind == "varchar":
		length, full = "CHAR_LENGTH", c.most
	case c.isBinary():
		full = c.octets
	}
	text := fmt.Sprintf("%s(%s) >= %d", length, quoted(c.name), full)
	if c.isText() && !strings.HasPrefix(c.charset, "utf8") {
		text += " OR LOCATE('?', " + quoted(c.name) + ") > 0"
	}
	return text
}

// pageText is the statement for the page behind a row, of these columns behind those of the primary key. The index is
// forced, because statistics may say that all of a young table is read faster; and the condition is written out,
// because the servers read a comparison of whole rows without the index.
func (s *shape) pageText(columns []string, after [][]byte, limit int) (text string, args []any) {
	var names, texts, behind []string
	var values []any
	where, same := "", ""
	for i, c := range s.primary {
		name := quoted(c.name)
		names, texts = append(names, name), append(texts, c.text())
		if after == nil {
			continue
		}
		mark, value := "?", any(string(after[i])) // text is compared by the column's collation, all else exactly
		switch {
		case c.isBinary():
			value = append([]byte{}, after[i]...) // nil would be NULL
		case c.isInteger():
			mark = "CAST(? AS DECIMAL(20))"
		}
		behind, values = append(behind, same+name+" > "+mark), append(values, value)
		same += name + " = " + mark + " AND "
		args = append(args, values...)
		where = " WHERE (" + strings.Join(behind, ") OR (") + ")"
	}
	return fmt.Sprintf("SELECT %s FROM %s.%s FORCE INDEX (PRIMARY)%s ORDER BY %s LIMIT %d",
		strings.Join(append(texts, columns...), ", "), quoted(s.database), quoted(s.table), where,
		strings.Join(names, ", "), limit), args
}

// pages reads the table behind a row, in pages of so many rows at most. Each row is visited, the columns of the primary
// key first; done is called behind each page, and next before another one follows, with how many rows were read and
// when the page began. An error of theirs ends it. It locks nothing.
func (s *shape) pages(
	ctx context.Context, columns []string, after [][]byte, most int, visit func(row []sql.RawBytes), done func() error,
	next func(rows int, began time.Time) error,
) error {
	row := make([]sql.RawBytes, len(s.primary)+len(columns)) // scanned where the driver has them: they may be millions
	var into []any
	for i := range row {
		into = append(into, &row[i])
	}
	for read, limit := 0, most; ; {
		began, n, size := time.Now(), 0, 0
		text, args := s.pageText(columns, after, limit)
		after = make([][]byte, len(s.primary))
		err := s.each(ctx, "a page", func(rows *sql.Rows) error {
			if err := rows.Scan(into...); err != nil {
				return err
			}
			for i := range after {
				after[i] = append(after[i][:0], row[i]...)
			}
			visit(row)
			n++
			for _, column := range row {
				size += len(column)
			}
			if size > pageBytes {
				return errFull
			}
			return nil
		}, text, args...)
		full := errors.Is(err, errFull)
		if err != nil && !full {
			return err
		}
		if err := done(); err != nil || n < limit && !full {
			return err
		}
		read += n
		if err := next(read, began); err != nil {
			return err
		}
		if limit = min(2*limit, most); full { // what is behind it was sent in vain
			limit = n
		}
	}
}
