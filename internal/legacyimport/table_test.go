package legacyimport

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
)

func TestParseTableReadsOneNameOrTwo(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]string{
		"t": {"", "t"}, "d.t": {"d", "t"}, "`a.b`.t": {"a.b", "t"}, "`d`.`t`": {"d", "t"}, "`t`": {"", "t"},
		"Bestell log": {"", "Bestell log"},
	} {
		database, table, err := ParseTable(name)
		if err != nil || database != want[0] || table != want[1] {
			t.Errorf("%s: %q, %q, %v", name, database, table, err)
		}
	}
	for _, name := range []string{"", ".", "a.", ".b", "a.b.c", "`a", "`a`b", "a`b", strings.Repeat("x", 65)} {
		if _, _, err := ParseTable(name); err == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}

// What cannot be taken over is refused with what to do, before anything is written.
func TestWhatIsNoClassicTableIsRefused(t *testing.T) {
	t.Parallel()
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
		if _, err := Run(t.Context(), w.o); !errors.Is(err, ErrTable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", from, err, want)
		}
	}
	if n := w.number("SELECT COUNT(*) FROM rollbackd_meta WHERE name LIKE 'taken:%'"); n != 0 {
		t.Error("a waypoint was written")
	}
}

// Tables of other shapes are taken over as far as they go, and what they lack is said.
func TestTablesOfOtherShapesAreTakenOver(t *testing.T) {
	t.Parallel()
	latin := "caf\u00e9?"
	sum := sha256.Sum256([]byte(`{"name":"` + "caf\u00e9" + `"}`))
	for name, c := range map[string]struct {
		create, insert string
		key            string
		note           string
		odd            Kind
		hash           bool
	}{
		"the fewest columns": {
			create: "CREATE TABLE o (GROUP_NAME VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, " +
				"PRIMARY KEY (msg_key, msg_tag, group_name))",
			insert: "INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1)", key: "k", note: "it has no column msg_body",
		},
		"latin1": {
			create: "CREATE TABLE o (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, " +
				"msg_body VARCHAR(200), PRIMARY KEY (group_name, msg_tag, msg_key)) CHARSET=latin1",
			insert: "INSERT INTO o VALUES ('stock-rollback', 't', 'caf\u00e9?', 1, '{\"name\":\"caf\u00e9\"}')", key: latin,
			note: "latin1_swedish_ci", hash: true,
		},
		"latin1 with a lost character": {
			create: "CREATE TABLE o (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, " +
				"msg_body VARCHAR(200), PRIMARY KEY (group_name, msg_tag, msg_key)) CHARSET=latin1",
			insert: "INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1, '{\"name\":\"?\"}')", key: "k", odd: DoubtfulBody,
		},
		"a body that may be cut": {
			create: "CREATE TABLE o (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, " +
				"msg_body VARCHAR(8), PRIMARY KEY (group_name, msg_tag, msg_key)) CHARSET=utf8mb4",
			insert: "INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1, '{\"order_')", key: "k", odd: DoubtfulBody,
		},
		"bytes": {
			create: "CREATE TABLE o (group_name VARBINARY(90), msg_tag VARBINARY(90), msg_key VARBINARY(90), consumer_status " +
				"TINYINT, msg_body BLOB, PRIMARY KEY (group_name, msg_tag, msg_key))",
			insert: "INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1, '{\"name\":\"caf\u00e9\"}')", key: "k", hash: true,
		},
		"a number as the key, milliseconds as the time": {
			create: "CREATE TABLE o (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key BIGINT, consumer_status " +
				"ENUM('0','1'), consumer_timestamp BIGINT, PRIMARY KEY (group_name, msg_tag, msg_key))",
			insert: "INSERT INTO o VALUES ('stock-rollback', 't', 20261121, '1', 1793527200000)", key: "20261121",
		},
		"MyISAM": {
			create: "CREATE TABLE o (group_name VARCHAR(50), msg_tag VARCHAR(50), msg_key VARCHAR(50), consumer_status INT, " +
				"consumer_timestamp TIME, PRIMARY KEY (group_name, msg_tag, msg_key)) ENGINE=MyISAM",
			insert: "INSERT INTO o VALUES ('stock-rollback', 't', 'k', 1, NULL)", key: "k", note: "which is no time",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.create)
			w.exec(c.insert)
			w.o.From, w.o.Groups, w.o.page = "o", nil, 1
			r := w.run()
			if r.Counts[Success] != 1 || c.odd != "" && r.Counts[c.odd] != 1 ||
				!strings.Contains(strings.Join(r.Notes, "\n"), c.note) {
				t.Errorf("report: %+v", r)
			}
			row, err := w.records.Read(t.Context(), dedup.Identity{Group: group, Tag: "t", Key: c.key})
			if err != nil || row.Status != dedup.Success || c.hash && string(row.BodyHash) != string(sum[:]) ||
				!c.hash && row.BodyHash != nil {
				t.Errorf("row: %+v, %v", row, err)
			}
		})
	}
}

func TestATableOfAnotherDatabaseIsTakenOver(t *testing.T) {
	t.Parallel()
	w, elsewhere := newWorld(t, ""), newWorld(t, classicTable)
	elsewhere.old("k", 1)
	var database string
	if err := elsewhere.db.QueryRowContext(t.Context(), "SELECT DATABASE()").Scan(&database); err != nil {
		t.Fatal(err)
	}
	w.o.From = database + ".trade_mq_consumer_log"
	w.want("the pass", w.run(), map[Kind]int{Success: 1})
}

// Without hashes a later delivery with any body is a copy.
func TestBodiesMayBeLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, classicTable)
	w.old("k", 1)
	w.o.NoBodyHash = true
	w.want("the pass", w.run(), map[Kind]int{Success: 1})
	if row := w.read("k"); row.BodyHash != nil {
		t.Errorf("row: %+v", row)
	}
}
