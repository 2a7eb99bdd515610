package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// server is a private Prometheus.
type server struct {
	url     string
	targets string // the file in which it finds them

	mu    sync.Mutex
	known []target // guarded by mu
}

type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

const settings = `
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [alerts.yaml, rules.yaml]
scrape_configs:
  - job_name: daemons
    file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
`

// startServer starts a Prometheus with the rules sped up and no target, for the time of this test.
func startServer(t *testing.T) *server {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("make test-prometheus installs it: ", err)
	}
	dir, addr := t.TempDir(), stack.FreeAddr(t)
	s := &server{url: "http://" + addr, targets: filepath.Join(dir, "targets.json")}
	write(t, filepath.Join(dir, "prometheus.yml"), settings)
	write(t, filepath.Join(dir, "alerts.yaml"), sped(t, alertsFile))
	write(t, filepath.Join(dir, "rules.yaml"), sped(t, rulesFile))
	write(t, s.targets, "[]")
	program.Serve(t, program.Options{Path: path, Args: []string{
		"--config.file=" + filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
		"--web.listen-address=" + addr,
	}})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	eventually(t, "prometheus is ready", 30*time.Second, func() bool {
		resp, err := http.Get(s.url + "/-/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return s
}

// scrape adds a target under a job of its own.
func (s *server) scrape(t *testing.T, job, addr string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = append(s.known, target{[]string{addr}, map[string]string{"job": job}})
	text := require.Get(json.Marshal(s.known))(t)
	next := s.targets + ".next"
	write(t, next, string(text))
	if err := os.Rename(next, s.targets); err != nil { // whole, or not at all
		t.Fatal(err)
	}
}

type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

// query asks one expression for now.
func (s *server) query(ctx context.Context, expr string) ([]sample, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		s.url+"/api/v1/query?query="+url.QueryEscape(expr), http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Error string `json:"error"`
		Data  struct {
			Result []sample `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	return answer.Data.Result, nil
}

// holds reports whether the expression has a result now.
func (s *server) holds(t *testing.T, expr string) bool {
	t.Helper()
	found, err := s.query(context.WithoutCancel(t.Context()), expr)
	if err != nil {
		t.Errorf("ask prometheus: %v", err)
	}
	return len(found) > 0
}

func (s *server) firing(t *testing.T, alert, job string) bool {
	t.Helper()
	return s.holds(t, fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing",job=%q}`, alert, job))
}

// fires waits until the alert fires for the job; an empty job is an alert on what is not there.
func (s *server) fires(t *testing.T, alert, job string, within time.Duration) {
	t.Helper()
	began := time.Now()
	eventually(t, alert+" fires for the job "+job, within, func() bool { return s.firing(t, alert, job) })
	t.Logf("%s fires after %v", alert, time.Since(began).Round(time.Second))
}

func eventually(t *testing.T, what string, within time.Duration, yes func() bool) {
	t.Helper()
	if !poll.Within(within, yes) {
		t.Fatalf("still not after %v: %s", within, what)
	}
}
