package legacyimport

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// ErrTable says that a table is not there, or not one that can be taken over.
var ErrTable = errors.New("this table cannot be taken over")

// The columns of the classic table. The first four are required.
const (
	colGroup  = "group_name"
	colTag    = "msg_tag"
	colKey    = "msg_key"
	colStatus = "consumer_status"
	colID     = "msg_id"
	colBody   = "msg_body"
	colTimes  = "consumer_times"
	colTime   = "consumer_timestamp"
	colRemark = "remark"
)

// tableName is TABLE or DATABASE.TABLE, each part in backticks or without, and of 64 characters at most.
var tableName = regexp.MustCompile("^(?:(?:`([^`]{1,64})`|([^.`]{1,64}))[.])?(?:`([^`]{1,64})`|([^.`]{1,64}))$")

// ParseTable reads "table" or "database.table"; parts of a name that hold a dot stand in backticks.
func ParseTable(name string) (database, table string, err error) {
	parts := tableName.FindStringSubmatch(name)
	if parts == nil {
		return "", "", fmt.Errorf("%q is no name of a table: want TABLE or DATABASE.TABLE", name)
	}
	return parts[1] + parts[2], parts[3] + parts[4], nil
}

// quoted is a name in a statement.
func quoted(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// column is a column as the server describes it.
type column struct {
	name         string
	kind         string // data_type, in small letters
	charset      string // "" of what is no text
	collation    string
	most, octets int64 // most is characters, of text; else bytes
	part         int64 // of the primary key, if that holds only so many characters
}

func (c column) isText() bool { return c.charset != "" }
func (c column) isBinary() bool {
	return strings.HasSuffix(c.kind, "binary") || strings.HasSuffix(c.kind, "blob")
}
func (c column) isInteger() bool {
	return slices.Contains([]string{"tinyint", "smallint", "mediumint", "int", "bigint"}, c.kind)
}
func (c column) isMoment() bool { return c.kind == "timestamp" || c.kind == "datetime" }

// shape is what is known of a table that is taken over.
type shape struct {
	db              *sql.DB
	database, table string
	columns         map[string]column
	primary         []column // of the primary key, in its order
	rows            int64    // about
	notes           []string

	told time.Time // by the database's clock
	at   time.Time // of that, by the clock of this process
}

// now is the database's time.
func (s *shape) now() time.Time { return s.told.Add(time.Since(s.at)) }

func (s *shape) has(name string) bool { _, ok := s.columns[name]; return ok }

// name is the table's name for people.
func (s *shape) name() string { return s.database + "." + s.table }

func (s *shape) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// inspect finds out what a table is. Its errors are ErrTable, or those of a server that does not answer.
func inspect(ctx context.Context, db *sql.DB, name string) (*shape, error) {
	s := &shape{db: db, columns: map[string]column{}}
	database, table, err := ParseTable(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTable, err)
	}
	var kind, engine string
	var micros int64
	err = db.QueryRowContext(ctx, "SELECT table_schema, table_name, table_type, engine, table_rows, "+
		"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM information_schema.tables "+
		"WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?", database, table).Scan(&s.database,
		&s.table, mysqldb.OrZero(&kind), mysqldb.OrZero(&engine), mysqldb.OrZero(&s.rows), &micros)
	s.told, s.at = time.UnixMicro(micros), time.Now()
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("%w: there is no %s on this server, or this account may not read it "+
			"(GRANT SELECT ON %s TO …)", ErrTable, name, name)
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", name, err)
	case kind != "BASE TABLE":
		return nil, fmt.Errorf("%w: %s is a %s. It is read in pages through its primary key, which a view has not: name "+
			"the table below it", ErrTable, s.name(), strings.ToLower(kind))
	}
	if !strings.EqualFold(engine, "InnoDB") {
		s.note("its engine is %s: each page that is read makes writers wait for as long as that takes", engine)
	}
	const ofTable = " WHERE table_schema = ? AND table_name = ?"
	err = s.each(ctx, "the columns", func(rows *sql.Rows) error {
		var c column
		err := rows.Scan(&c.name, &c.kind, mysqldb.OrZero(&c.charset), mysqldb.OrZero(&c.collation),
			mysqldb.OrZero(&c.most), mysqldb.OrZero(&c.octets))
		c.kind = strings.ToLower(c.kind)
		s.columns[strings.ToLower(c.name)] = c
		return err
	}, "SELECT column_name, data_type, character_set_name, collation_name, character_maximum_length, "+
		"character_octet_length FROM information_schema.columns"+ofTable, s.database, s.table)
	if err != nil {
		return nil, err
	}
	err = s.each(ctx, "the primary key", func(rows *sql.Rows) error {
		var name string
		var part int64
		err := rows.Scan(&name, mysqldb.OrZero(&part))
		c := s.columns[strings.ToLower(name)]
		c.part = part
		s.primary = append(s.primary, c)
		return err
	}, "SELECT column_name, sub_part FROM information_schema.statistics"+ofTable+
		" AND index_name = 'PRIMARY' ORDER BY seq_in_index", s.database, s.table)
	if err != nil {
		return nil, err
	}
	return s, s.check()
}

// each visits what a statement reads of the table.
func (s *shape) each(
	ctx context.Context, what string, visit func(*sql.Rows) error, text string, args ...any,
) error {
	if _, err := mysqldb.List(ctx, s.db, func(rows *sql.Rows) (none struct{}, err error) {
		return none, visit(rows)
	}, text, args...); err != nil {
		return fmt.Errorf("read %s of %s: %w", what, s.name(), err)
	}
	return nil
}

// check refuses what cannot be the classic table, and notes what is missing.
func (s *shape) check() error {
	if s.has("owner") && s.has("replays") && s.has("body_hash") {
		return fmt.Errorf("%w: %s is a consumer log of rollbackd's own", ErrTable, s.name())
	}
	missing := slices.DeleteFunc([]string{colGroup, colTag, colKey, colStatus}, s.has)
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s has no column %s; it must have %s, %s, %s and %s, and may have %s, %s, %s, %s and %s",
			ErrTable, s.name(), strings.Join(missing, ", "), colGroup, colTag, colKey, colStatus, colID, colBody, colTimes,
			colTime, colRemark)
	}
	if len(s.primary) == 0 {
		return fmt.Errorf("%w: %s has no primary key, through which it could be read in pages", ErrTable, s.name())
	}
	for _, c := range s.primary {
		switch {
		case c.part > 0:
			return fmt.Errorf("%w: the primary key of %s holds only the first %d characters of %s, so no page ends at a "+
				"row", ErrTable, s.name(), c.part, c.name)
		case !c.isText() && !c.isBinary() && !c.isInteger(), c.kind == "enum", c.kind == "set":
			return fmt.Errorf("%w: column %s of the primary key of %s is %s; it must hold text, bytes or integers", ErrTable,
				c.name, s.name(), c.kind)
		}
	}
	for _, o := range []struct{ name, means string }{
		{colID, "nothing is known of message ids"},
		{colBody, "no hash of a body is kept, so a later delivery with any body is taken for a copy; and what was left " +
			"open cannot be sent again from here"},
		{colTimes, "a success counts as one attempt, what was left open as none"},
		{colTime, "rows count as of now, and LOG_RETENTION begins now"},
		{colRemark, "what was left open has no last error"},
	} {
		if !s.has(o.name) {
			s.note("it has no column %s: %s", o.name, o.means)
		}
	}
	if c := s.columns[colTime]; s.has(colTime) && !c.isMoment() && !c.isInteger() {
		s.note("%s is %s, which is no time: rows count as of now, and LOG_RETENTION begins now", c.name, c.kind)
		delete(s.columns, colTime)
	}
	if c := s.columns[colKey]; c.isText() && !strings.HasSuffix(c.collation, "_bin") {
		s.note("%s is %s: the old consumer took keys for one that differ in no more than this collation sees (case, "+
			"accents, trailing spaces). rollbackd takes them for two, and knows the one that the table has", c.name,
			c.collation)
	}
	return nil
}
