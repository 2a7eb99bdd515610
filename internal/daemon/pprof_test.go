package daemon_test

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Given a daemon with a token, then its profiles are for who has it; without one, for this machine; and what comes is a
// profile that go tool pprof reads.
func TestProfilesAreForThoseWhoMayAct(t *testing.T) {
	t.Parallel()
	const token = "open-sesame"
	for name, c := range map[string]struct {
		set, sent string
		want      int
	}{
		"no token is set":   {"", "", http.StatusOK},
		"it is not sent":    {token, "", http.StatusUnauthorized},
		"another one":       {token, "close-sesame", http.StatusUnauthorized},
		"the one that fits": {token, token, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if c.set != "" {
				w.set("ADMIN_TOKEN", c.set)
			}
			daemon := w.start()
			w.ready(daemon)
			for _, page := range []string{"heap", "profile?seconds=1", "cmdline", "goroutine?debug=1"} {
				r := calls(t, daemon, c.sent, http.MethodGet, "/debug/pprof/"+page, "")
				status, body := r.status, r.text
				if status != c.want {
					t.Errorf("%s answers %d, want %d", page, status, c.want)
				}
				if c.want != http.StatusOK && bytes.Contains(body, []byte("goroutine")) {
					t.Errorf("%s tells of the process all the same", page)
				}
				if page == "heap" && status == http.StatusOK {
					path := filepath.Join(t.TempDir(), "heap")
					if err := os.WriteFile(path, body, 0o600); err != nil {
						t.Fatal(err)
					}
					if out, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-top", path).CombinedOutput(); err != nil {
						t.Errorf("go tool pprof: %v\n%s", err, out)
					}
				}
			}
			w.stop(daemon)
		})
	}
}
