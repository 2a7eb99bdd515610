package daemon_test

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given a daemon with a token, then its profiles are for who has it; without one, for this machine; and what comes is a
// profile that go tool pprof reads.
func TestProfilesAreForThoseWhoMayAct(t *testing.T) {
	t.Parallel()
	for set, statuses := range map[string]map[string]int{
		"":            {"": http.StatusOK},
		"open-sesame": {"": http.StatusUnauthorized, "close-sesame": http.StatusUnauthorized, "open-sesame": http.StatusOK},
	} {
		w := newWorld(t, "ADMIN_TOKEN", set)
		daemon := w.start()
		w.ready(daemon)
		for sent, want := range statuses {
			for _, page := range []string{"heap", "profile?seconds=1", "cmdline", "goroutine?debug=1"} {
				r := calls(t, daemon, sent, http.MethodGet, "/debug/pprof/"+page, "")
				is(w, page+" for "+sent, r.status, want)
				if want != http.StatusOK && bytes.Contains(r.text, []byte("goroutine")) {
					t.Errorf("%s tells of the process all the same", page)
				}
				if page == "heap" && want == http.StatusOK {
					path := filepath.Join(t.TempDir(), "heap")
					require.OK(t, os.WriteFile(path, r.text, 0o600))
					if out, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-top", path).CombinedOutput(); err != nil {
						t.Errorf("go tool pprof: %v\n%s", err, out)
					}
				}
			}
		}
		w.stop(daemon)
	}
}
