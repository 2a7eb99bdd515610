package daemon_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// Given a table whose text cannot hold an emoji, when messages with one come among others, and then alone, then each is
// a letter after its attempts, the others are applied, and /readyz answers 200 all the while.
func TestTextThatATableCannotHoldIsItsMessagesFailure(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "handler.sql")
	const statement = "UPDATE shelf SET visits = visits + 1 WHERE name = :name; -- expect 1, else permanent: no such shelf"
	ok(t, os.WriteFile(file, []byte(statement), 0o600))
	w := newWorld(t, "HANDLER", "sql", "SQL_FILE", file, "RETRY_DELAYS", "100ms,300ms,1s,3s")
	w.exec("CREATE TABLE shelf (name VARCHAR(20) CHARACTER SET latin1 PRIMARY KEY, visits INT NOT NULL) ENGINE=InnoDB")
	w.exec("INSERT INTO shelf VALUES ('left', 0), ('right', 0)")
	const bad, good = 20, 2000
	poison := func(where string) (sent []oracle.Sent) {
		for i := range bad {
			sent = append(sent, oracle.Sent{
				Publishing: w.route.Message(fmt.Sprint(where, i), []byte(`{"name":"shelf 😀"}`)),
				Fate:       oracle.ToDie(dedup.ReasonExhausted),
			})
		}
		return sent
	}
	among := poison("among ")
	for i := range good {
		among = append(among, oracle.Sent{
			Publishing: w.route.Message("good "+itoa(i), []byte(`{"name":"`+[]string{"left", "right"}[i%2]+`"}`)),
			Fate:       oracle.ToBeApplied(),
		})
	}
	w.rng.Shuffle(len(among), func(i, j int) { among[i], among[j] = among[j], among[i] })

	daemon := w.start()
	ready := func() bool {
		status, _, err := daemon.Get(t.Context(), "/readyz")
		return err == nil && status == http.StatusOK
	}
	w.eventually("it is ready", ready)
	for _, wave := range [][]oracle.Sent{among, poison("alone ")} {
		before := w.rows(dedup.Success) + w.rows(dedup.Dead)
		w.publish(wave...)
		w.eventually("all have ended", func() bool {
			if status, body, err := daemon.Get(t.Context(), "/readyz"); err != nil || status != http.StatusOK {
				t.Errorf("/readyz: %d, %s (%v)", status, body, err)
				return true
			}
			return w.rows(dedup.Success)+w.rows(dedup.Dead) == before+len(wave)
		})
	}
	w.ended(good + 2*bad)
	w.stop(daemon)
	is(w, "letters have had their five attempts",
		w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3 AND consumer_times = 5"), 2*bad)
	is(w, "visits", w.count("SELECT SUM(visits) FROM shelf"), good)
	w.judge(oracle.Allowance{})
}
