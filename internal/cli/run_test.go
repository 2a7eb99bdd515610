package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given 400 messages without a body that anybody can read and three with a key that another body has, then the log has
// a few lines of the former, of which one counts the rest, and one for each of the three.
func TestAFloodOfLettersIsReadableInTheLog(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	var in strings.Builder
	const many = 400
	for i := range many {
		fmt.Fprintf(&in, "{\"order_sn\":\"F-%d\",\"items\":[]}\n", i)
	}
	for i := range 3 {
		fmt.Fprintf(&in, "{\"order_sn\":\"F-%d\",\"items\":[1]}\n", i)
	}
	require.Is(t, s.run(in.String(), "publish", "--key-field", "order_sn"), exitDone,
		"publish: exit %s", s.script.String())
	stop := s.daemon()
	s.eventually(many+3, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	stop()
	seen, lines := map[string]int{}, map[string]int{}
	for line := range strings.Lines(s.log) {
		var entry struct {
			Msg, Reason string
			More        int `json:"more_like_this"`
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if entry.Msg == "dead-lettered" {
			lines[entry.Reason]++
			seen[entry.Reason] += 1 + entry.More
		}
	}
	if seen["malformed"] != many || lines["malformed"] > 30 || lines["conflict"] != 3 {
		t.Errorf("%d lines for %d malformed letters, %d for the conflicts, want 11 for %d and 3:\n%.2000s",
			lines["malformed"], seen["malformed"], lines["conflict"], many, s.log)
	}
}
