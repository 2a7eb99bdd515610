package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// points is a second queue, with all that it must have for itself, and changes in pairs.
func points(changes ...string) map[string]string {
	return set(append([]string{"QUEUES", "stock,points", "POINTS__QUEUE", "points.refund", "POINTS__GROUP", "points",
		"POINTS__ROUTING_KEYS", "points.refund"}, changes...)...)
}

// Given several queues, then each has what is said for it, also in a file, and for the rest what is said for all; the
// first is the one that is looked at.
func TestEachQueueHasWhatIsSaidForIt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	require.OK(t, os.WriteFile(file, []byte("of-points\n"), 0o600))
	cfg := load(t, points("LANES", "2", "POINTS__LANES", "3", "HANDLER_TIMEOUT", "7s", "POINTS__HANDLER", "http",
		"POINTS__HTTP_TARGET", "https://points.example.com/", "POINTS__HTTP_TOKEN_FILE", file, "HTTP_TOKEN", "of-all"))
	all := cfg.All()
	require.That(t, len(all) == 2 && all[0].Queue == "stock.rollback" && all[1].Queue == "points.refund", "got %v", all)
	for i, want := range []struct {
		handler, group, token string
		lanes                 int
	}{{"stock", "stock-rollback", "of-all", 2}, {"http", "points", "of-points", 3}} {
		c := all[i]
		assert.That(t, c.Handler == want.handler && c.Group == want.group && c.HTTPToken == want.token &&
			c.Lanes == want.lanes && c.HandlerTimeout == 7*time.Second && c.MySQLDSN == all[0].MySQLDSN, "%s has %v", c.Queue, c)
	}
	turned := load(t, points("QUEUES", "points,stock"))
	assert.That(t, turned.Queue == "points.refund" && turned.All()[1].Queue == "stock.rollback",
		"the first of the list is %s", turned.Queue)
	assert.Is(t, len(load(t, nil).All()), 1, "queues without a list")
}

// What is wrong with one queue, or with two beside each other, is refused under the name by which it was said.
func TestWhatIsWrongWithAQueueIsRefusedByItsName(t *testing.T) {
	t.Parallel()
	for says, c := range map[string][]string{ // the name, and what is changed
		"not of small letters":        {"QUEUES", "QUEUES", "stock,Points"},
		"names stock twice":           {"QUEUES", "QUEUES", "stock,stock"},
		"ROLLBACKD_POINTS__MYSQL_DSN": {"QUEUES", "POINTS__MYSQL_DSN", "a@tcp(b)/c"},
		"the statements":              {"SQL_FILE", "POINTS__HANDLER", "sql"},
		"1 to":                        {"POINTS__LANES", "POINTS__LANES", "0"},
		"is the queue of two":         {"POINTS__QUEUE", "POINTS__QUEUE", "stock.rollback"},
		"would come to both":          {"POINTS__ROUTING_KEYS", "POINTS__ROUTING_KEYS", "a,stock.rollback"},
		"has another handler": {"POINTS__GROUP", "POINTS__GROUP", "stock-rollback", "POINTS__HANDLER", "sql",
			"POINTS__SQL_FILE", "f"},
	} {
		found := problems(t, points(c[1:]...))
		assert.That(t, len(found) == 1 && found[0].Variable == "ROLLBACKD_"+c[0] && strings.Contains(found[0].text, says),
			"%v: %v, want one of %s that says %q", c[1:], found, c[0], says)
	}
	assert.Is(t, len(problems(t, points("LANES", "0"))), 1, "what both share is told times")
	_, warnings, err := Load(environ(points("POINT__LANES", "2")))
	assert.That(t, err == nil && len(warnings) == 1 && strings.Contains(warnings[0].What, "no setting"),
		"a misspelt queue: %v, %v", warnings, err)
}

// Who adds a setting says whether it may be said for one queue: the names are those of settings.
func TestTheSettingsOfAQueueAreSettings(t *testing.T) {
	t.Parallel()
	for _, key := range ofAQueue {
		assert.That(t, slices.ContainsFunc(Variables(), func(v Variable) bool { return v.key == key }), "%s is no setting",
			key)
	}
}
