package consumer_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// refusal is a statement that a server refuses; the numbers are those of its errors.
type refusal struct {
	text           string
	mariaDB, mySQL int
}

// refusals are of many kinds. None says that anything is wrong with the server.
var refusals = map[string]refusal{
	"collations":       {"DELETE FROM note WHERE u COLLATE utf8mb3_bin = u COLLATE utf8mb3_general_ci", 1267, 1267},
	"collations of 3":  {"DELETE FROM note WHERE u COLLATE utf8mb3_bin IN (u COLLATE utf8mb3_general_ci, '')", 1270, 1270},
	"emoji sought":     {"DELETE FROM note WHERE l = '😀'", 1267, 3854},
	"emoji of 3":       {"DELETE FROM note WHERE u IN ('😀', 'x')", 1270, 3854},
	"emoji written":    {"UPDATE note SET l = '😀'", 1366, 1366},
	"no text":          {"DELETE FROM note WHERE l = _utf8mb4 x'ff'", 1300, 1300},
	"two rows":         {"UPDATE note SET n = (SELECT id FROM (SELECT id FROM note) x)", 1242, 1242},
	"no expression":    {"DELETE FROM note WHERE l REGEXP '('", 1139, 3691},
	"a row too wide":   {"INSERT INTO wide SELECT 1" + strings.Repeat(", REPEAT('x', 1000)", 12), 1118, 1118},
	"out of range":     {"UPDATE note SET n = n - 1", 1690, 1690},
	"no JSON":          {"UPDATE note SET j = '{'", 4025, 3140},
	"CHECK":            {"UPDATE note SET c = 0", 4025, 3819},
	"generated":        {"UPDATE note SET g = 7", 1906, 3105},
	"SIGNAL 02":        {"INSERT INTO told VALUES ('02')", 1643, 1643},
	"SIGNAL 45":        {"INSERT INTO told VALUES ('45')", 1644, 1644},
	"SIGNAL HY":        {"INSERT INTO told VALUES ('HY')", 1644, 1644},
	"SIGNAL 08":        {"INSERT INTO told VALUES ('08')", 1644, 1644},
	"SIGNAL 40":        {"INSERT INTO told VALUES ('40')", 1644, 1644},
	"SIGNAL's 1213":    {"INSERT INTO told VALUES ('1213')", 1213, 1213},
	"SIGNAL's 45, too": {"INSERT INTO told VALUES ('1213,45')", 1213, 1213},
}

// warned is a message whose trigger says SQLSTATE 01: a warning, which neither server makes an error of.
const warned = "INSERT INTO told VALUES ('01')"

// refusing makes what the refusals meet. Its messages are statements, which the handler runs before it writes their
// effect; eachBlamed, it says whose failed.
func (w *world) refusing(eachBlamed bool) {
	w.t.Helper()
	w.exec("CREATE TABLE note (id INT PRIMARY KEY, l VARCHAR(9) CHARACTER SET latin1, u VARCHAR(9) CHARACTER SET " +
		"utf8mb3, n BIGINT UNSIGNED, j JSON, g INT AS (id + 1) STORED, c INT, CHECK (c > 0)) ENGINE=InnoDB")
	w.exec("INSERT INTO note (id, l, u, n, j, c) VALUES (1, 'a', 'b', 0, '{}', 1), (2, 'a', 'b', 0, '{}', 1)")
	var columns []string
	for i := range 12 {
		columns = append(columns, fmt.Sprintf("c%d TEXT", i))
	}
	lax := w.conn()
	w.execOn(lax, "SET SESSION innodb_strict_mode = OFF")
	w.execOn(lax, "CREATE TABLE wide (id INT PRIMARY KEY, "+strings.Join(columns, ", ")+") ENGINE=InnoDB "+
		"ROW_FORMAT=COMPACT")
	w.exec("CREATE TABLE told (s CHAR(9)) ENGINE=InnoDB")
	w.exec(`CREATE TRIGGER tells BEFORE INSERT ON told FOR EACH ROW BEGIN
		IF NEW.s = '01' THEN SIGNAL SQLSTATE '01000' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = '02' THEN SIGNAL SQLSTATE '02000' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = '45' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = 'HY' THEN SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = '08' THEN SIGNAL SQLSTATE '08S01' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = '40' THEN SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = '1213' THEN SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = 'no', MYSQL_ERRNO = 1213; END IF;
		IF NEW.s = '1213,45' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no', MYSQL_ERRNO = 1213; END IF;
	END`)
	one := func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if err := tx.WithContext(ctx).Exec(string(m.Body)).Error; err != nil {
			return err
		}
		return insert(tx.WithContext(ctx), m.Key)
	}
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		for _, m := range msgs {
			if err := one(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	if eachBlamed {
		w.handler = consumer.Each(one)
	}
}

// likeDefault has the proportions of the default settings, fifty times as fast.
func (w *world) likeDefault() {
	w.cfg.MaxAttempts, w.cfg.RetryDelays = 5, []time.Duration{
		20 * time.Millisecond, 100 * time.Millisecond, 600 * time.Millisecond, 2400 * time.Millisecond,
	}
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 4, 1000, 2000
	w.cfg.HandlerTimeout, w.cfg.Lease = 10*time.Second, 30*time.Second
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 0, 0, 0
	w.broker.Track(w.topology().Queues()...)
	w.records = w.log(w.open(w.direct))
}

// Given messages whose statements the server refuses, each for another reason, when they are all there is, and when
// they come among others, and whether or not the handler says whose statement it was, then each of them is a letter
// after its attempts, with the server's words, all others are applied, and nobody waits for a MySQL that is there.
func TestWhatAServerRefusesOfAStatementIsTheMessagesFailure(t *testing.T) {
	t.Parallel()
	for how, eachBlamed := range map[string]bool{"blamed": true, "halved": false} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.likeDefault()
			w.refusing(eachBlamed)
			number := func(r refusal) int { return r.mariaDB }
			if w.number("SELECT VERSION() LIKE '%MariaDB%'") == 0 {
				number = func(r refusal) int { return r.mySQL }
			}
			messages := func(where string) (msgs []rabbit.Message, poison []string) {
				for _, what := range slices.Sorted(maps.Keys(refusals)) {
					poison = append(poison, where+what)
					msgs = append(msgs, message(where+what, refusals[what].text))
				}
				return msgs, poison
			}
			r := w.start()

			alone, poisonAlone := messages("alone: ")
			w.publishMessages(alone...)
			w.ended(dedup.Dead, poisonAlone...)

			among, poisonAmong := messages("among: ")
			all := append(keys("order", 200), "warned")
			for i, k := range all {
				text := "UPDATE note SET n = n WHERE id = 1"
				if k == "warned" {
					text = warned
				}
				among = slices.Insert(among, (i*7)%len(among), message(k, text))
			}
			w.publishMessages(among...)
			w.ended(dedup.Success, all...)
			w.ended(dedup.Dead, poisonAmong...)
			w.quiet()

			for _, where := range []string{"alone: ", "among: "} {
				for what, refused := range refusals {
					row := w.row(where + what)
					words := fmt.Sprintf("Error %d ", number(refused))
					if row.Attempts != w.cfg.MaxAttempts || row.Reason != dedup.ReasonExhausted ||
						!strings.Contains(row.Remark, words) {
						t.Errorf("%s%s: %d attempts, %s, %q; want %d, exhausted, %q", where, what, row.Attempts, row.Reason,
							row.Remark, w.cfg.MaxAttempts, words)
					}
				}
			}
			w.want("effects", w.effects(), once(all...))
			if n := w.dead(); n != 2*len(refusals) {
				t.Errorf("%d letters, want %d", n, 2*len(refusals))
			}
			if s := r.State(); !s.Consuming || len(s.Paused) > 0 { // on a busy machine transactions may wait for each other
				t.Errorf("state %+v, want consuming and nothing that waits", s)
			}
			if log := w.logs.String(); strings.Contains(log, "waiting for mysql") {
				t.Errorf("it waited for MySQL:\n%s", log)
			}
		})
	}
}

func message(key, body string) rabbit.Message {
	return rabbit.Message{MessageID: key, Body: []byte(body), DeliveryMode: rabbit.Persistent}
}

// Given a procedure that is missing, when it is called and nothing else is done, then MySQL is named, no attempt is
// counted, and all goes on by itself when it is there.
func TestAMissingProcedureIsNobodysFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.likeDefault()
	w.refusing(false)
	w.publish("CALL reckon()", "one", "two")
	r := w.start()
	w.paused(r, "mysql")
	if s := r.State(); !strings.Contains(strings.Join(s.Paused, " "), "Error 1305") {
		t.Errorf("state %+v, want error 1305 named", s)
	}
	w.exec("CREATE PROCEDURE reckon() UPDATE note SET n = n + 1")
	w.ended(dedup.Success, "one", "two")
	w.recovered(r)
	w.quiet()
	for _, k := range []string{"one", "two"} {
		if row := w.row(k); row.Attempts != 1 {
			t.Errorf("%s had %d attempts, want 1", k, row.Attempts)
		}
	}
	if n := w.number("SELECT n FROM note WHERE id = 2"); n != 2 {
		t.Errorf("it was called %d times for good, want 2", n)
	}
}
