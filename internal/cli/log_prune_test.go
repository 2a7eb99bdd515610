package cli

import (
	"testing"
	"time"
)

// rows puts n rows of a status and an age into the log.
func (s *shell) rows(status, n int, age time.Duration) {
	s.t.Helper()
	for i := range n {
		if _, err := s.db().ExecContext(s.t.Context(), "INSERT INTO consumer_log (group_name, msg_tag, msg_key, "+
			"consumer_status, consumer_times, consumer_timestamp, created_at)"+
			" VALUES ('stock-rollback', 't', CONCAT(?, ' ', ?, ' ', ?), ?, 1, UTC_TIMESTAMP(6) - INTERVAL ? SECOND, "+
			"UTC_TIMESTAMP(6))",
			status, int(age.Hours()), i, status, int(age.Seconds())); err != nil {
			s.t.Fatal(err)
		}
	}
}

func TestPruneShowsWhatGoesAndDeletesIt(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	s.run("", "log", "prune")
	const day = 24 * time.Hour
	s.rows(1, 3, 31*day)
	s.rows(1, 2, 29*day)
	s.rows(4, 1, 40*day)
	s.rows(3, 1, 31*day)
	s.run("", "log", "prune", "--dry-run")
	s.run("", "log", "prune", "--dry-run", "--older-than", "48h", "-o", "json")
	s.eventually(7, "SELECT COUNT(*) FROM consumer_log")
	s.run("", "log", "prune", "-o", "json")
	s.eventually(3, "SELECT COUNT(*) FROM consumer_log")
	s.run("", "log", "prune", "--older-than", "600h")
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log")
	s.golden("prune")
}
