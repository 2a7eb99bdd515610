package daemon_test

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/program"
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
				status, body := getWithToken(t, daemon, "/debug/pprof/"+page, c.sent)
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

func getWithToken(t *testing.T, p *program.Process, path, token string) (status int, body []byte) {
	t.Helper()
	addr, err := p.Addr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}
