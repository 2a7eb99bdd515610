package daemon

import (
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/config"
)

func TestALaneIsStuckWhenNoServerCanBeTheReason(t *testing.T) {
	for _, c := range []struct {
		still, timeout time.Duration
		stuck          bool
	}{
		{0, 10 * time.Second, false},
		{30 * time.Second, 10 * time.Second, false},
		{31 * time.Second, 10 * time.Second, true},
		{29 * time.Second, 100 * time.Millisecond, false}, // a broker that gives no answer is waited for so long
		{31 * time.Second, 100 * time.Millisecond, true},
		{89 * time.Second, 30 * time.Second, false},
	} {
		if got := stuck(c.still, c.timeout); got != "" != c.stuck {
			t.Errorf("still for %v with a handler timeout of %v: %q, want stuck %v", c.still, c.timeout, got, c.stuck)
		}
	}
}

// An empty token is what a template leaves where nobody wants one.
func TestASettingThatIsSetButEmptyWarnsOfNothing(t *testing.T) {
	environ := []string{"ROLLBACKD_AMQP_URL=amqp://h/", "ROLLBACKD_MYSQL_DSN=u:p@tcp(h)/d", "ROLLBACKD_REDIS_URL=off"}
	for token, want := range map[string]int{"": 0, "abcdefghijklmnop": 1} {
		cfg, _, err := config.Load(append(environ, "ROLLBACKD_ADMIN_TOKEN="+token))
		if err != nil {
			t.Fatal(err)
		}
		if got := unusedSettings(cfg); len(got) != want {
			t.Errorf("with the token %q it warns of %q", token, got)
		}
	}
}
