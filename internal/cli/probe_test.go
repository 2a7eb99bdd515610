package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a daemon as it runs in a container, when it runs and when it is gone, then probe says so by its exit
// code, and needs no setting but the address: a file of a secret that is being replaced makes nobody dead.
func TestProbeAsksTheDaemonThatRuns(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	addr := stack.FreeAddr(t)
	s.environ = append(s.environ, "ROLLBACKD_HTTP_ADDR="+addr)
	stop := s.daemon()
	gone := filepath.Join(t.TempDir(), "gone")
	environ := []string{"ROLLBACKD_HTTP_ADDR=" + addr, "ROLLBACKD_MYSQL_DSN_FILE=" + gone}
	// The broker knows its consumer a moment before the daemon says that it is ready.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(time.Minute); ; <-tick.C {
		_, errOut, code := runCLI(t, environ, "", "probe", "--ready")
		if code == exitDone && errOut == "" {
			break
		}
		if code != exitFailed || time.Now().After(late) {
			t.Fatalf("probe --ready: exit %d, %q; want 0 in silence within a minute", code, errOut)
		}
	}
	if out, errOut, code := runCLI(t, environ, "", "probe"); code != exitDone || out+errOut != "" {
		t.Errorf("probe: exit %d, %q; want 0 in silence", code, out+errOut)
	}
	stop()
	for _, args := range [][]string{{"probe"}, {"probe", "--ready"}} {
		_, errOut, code := runCLI(t, environ, "", args...)
		if code != exitFailed || !strings.Contains(errOut, "no daemon answers at ROLLBACKD_HTTP_ADDR "+addr) {
			t.Errorf("%v without a daemon: exit %d, %q; want 1 and the address", args, code, errOut)
		}
	}
}
