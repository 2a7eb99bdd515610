package legacyimport

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestParseTableReadsOneNameOrTwo(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]string{
		"t": {"", "t"}, "d.t": {"d", "t"}, "`a.b`.t": {"a.b", "t"}, "`d`.`t`": {"d", "t"}, "`t`": {"", "t"},
		"Bestell log": {"", "Bestell log"},
	} {
		database, table, err := ParseTable(name)
		assert.That(t, err == nil && database == want[0] && table == want[1], "%s: %q, %q, %v", name, database, table, err)
	}
	for _, name := range []string{"", ".", "a.", ".b", "a.b.c", "`a", "`a`b", "a`b", strings.Repeat("x", 65)} {
		_, _, err := ParseTable(name)
		assert.That(t, err != nil, "%q is accepted", name)
	}
}

// What cannot be taken over is refused with what to do, before anything is written.
func TestWhatIsNoClassicTableIsRefused(t *testing.T) {
	w := newWorld(t, classicTable)
	w.exec("CREATE VIEW v AS SELECT * FROM trade_mq_consumer_log")
	w.exec("CREATE TABLE bare (group_name VARCHAR(9), msg_tag VARCHAR(9), msg_key VARCHAR(9), consumer_status INT)")
	w.exec("CREATE TABLE other (id INT PRIMARY KEY, group_name VARCHAR(9))")
	w.exec("CREATE TABLE floats (id DOUBLE PRIMARY KEY, group_name VARCHAR(9), msg_tag VARCHAR(9), msg_key VARCHAR(9), " +
		"consumer_status INT)")
	w.exec("CREATE TABLE parts (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, " +
		"PRIMARY KEY (group_name(9), msg_tag(9), msg_key(9)))")
	for from, want := range map[string]string{
		"v": "is a view", "bare": "no primary key", "other": "has no column msg_tag, msg_key, consumer_status;",
		"consumer_log": "of rollbackd's own", "nothing": "there is no nothing", "a.b.c": "no name of a table",
		"floats": "is double", "parts": "first 9 characters", "mysql.nothing": "there is no mysql.nothing",
	} {
		w.o.From = from
		_, err := Run(t.Context(), w.o)
		assert.That(t, errors.Is(err, ErrTable) && strings.Contains(err.Error(), want), "%s: %v, want %q", from, err, want)
	}
	n := w.number("SELECT COUNT(*) FROM rollbackd_meta WHERE name LIKE 'taken:%'")
	assert.That(t, n == 0, "a waypoint was written")
}

// collation is one in a note: servers have different ones by default.
var collation = regexp.MustCompile(`is utf8mb4_\w+:`)

// Tables of other shapes are taken over as far as they go, and what they lack is said: testdata/shapes.sql has a table
// and a row of each, testdata/shapes.golden the notes, what is odd, and our row. -update rewrites that.
func TestTablesOfOtherShapesAreTakenOver(t *testing.T) {
	t.Parallel()
	text := require.Get(os.ReadFile("testdata/shapes.sql"))(t)
	var got strings.Builder
	for _, shape := range strings.Split(string(text), "-- ")[1:] {
		name, statements, _ := strings.Cut(shape, "\n")
		create, insert, _ := strings.Cut(statements, ";\n")
		w := anotherWorld(t, create)
		w.exec(strings.TrimSuffix(insert, ";\n"))
		w.o.From, w.o.Groups, w.o.page = "o", nil, 1
		r := w.run()
		fmt.Fprintf(&got, "%s: %v\n", name, r.Counts)
		for _, note := range r.Notes {
			fmt.Fprintf(&got, "  %s\n", collation.ReplaceAllString(note, "is OF SOME COLLATION:"))
		}
		for _, row := range w.texts("SELECT CONCAT_WS(' ', msg_key, 'is', consumer_status, consumer_times, " +
			"IF(ABS(TIMESTAMPDIFF(HOUR, consumer_timestamp, UTC_TIMESTAMP())) < 2, 'now', consumer_timestamp), " +
			"LEFT(HEX(body_hash), 8)) FROM consumer_log") {
			fmt.Fprintf(&got, "  %s\n", row)
		}
	}
	golden.Is(t, "testdata/shapes.golden", got.String())
}

func TestATableOfAnotherDatabaseIsTakenOver(t *testing.T) {
	w, elsewhere := newWorld(t, ""), anotherWorld(t, classicTable)
	elsewhere.old("k", 1)
	var database string
	require.OK(t, elsewhere.db.QueryRowContext(t.Context(), "SELECT DATABASE()").Scan(&database))
	w.o.From = database + ".trade_mq_consumer_log"
	w.want("the pass", w.run(), map[Kind]int{Success: 1})
}

// Without hashes a later delivery with any body is a copy.
func TestBodiesMayBeLeftOut(t *testing.T) {
	w := newWorld(t, classicTable)
	w.old("k", 1)
	w.o.NoBodyHash = true
	w.want("the pass", w.run(), map[Kind]int{Success: 1})
	row := w.read("k")
	assert.That(t, row.BodyHash == nil, "row: %+v", row)
}
