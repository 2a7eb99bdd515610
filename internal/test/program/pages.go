package program

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Get asks one of the daemon's pages.
func (p *Process) Get(ctx context.Context, path string) (status int, body string, err error) {
	addr, err := p.Addr(ctx)
	if err != nil {
		return 0, "", err
	}
	return Get(ctx, addr, path)
}

// Get asks one page at addr, on a connection of its own: the pages must not be kept open by those who look at them.
func Get(ctx context.Context, addr, path string) (status int, body string, err error) {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer from %s within %v", path, patience))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, http.NoBody)
	if err != nil {
		return 0, "", fmt.Errorf("get %s: %w", path, err)
	}
	request.Close = true
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, "", fmt.Errorf("get %s: %w", path, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, "", fmt.Errorf("get %s: %w", path, err)
	}
	return response.StatusCode, string(text), nil
}

// Metrics are samples by their name and labels, as written: rollbackd_deliveries_total{outcome="applied"}. The labels
// queue and group are left out, and what they tell apart is added up.
type Metrics map[string]float64

var whose = regexp.MustCompile(`\b(queue|group)="[^"]*",?`)

// Metrics reads the daemon's metrics.
func (p *Process) Metrics(ctx context.Context) (Metrics, error) {
	_, text, err := p.Get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return ParseMetrics(text), nil
}

// ParseMetrics reads the Prometheus text form; lines it does not know are left out.
func ParseMetrics(text string) Metrics {
	m := Metrics{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			sample := strings.ReplaceAll(whose.ReplaceAllString(line[:i], ""), ",}", "}")
			m[strings.TrimSuffix(sample, "{}")] += v
		}
	}
	return m
}

// Deliveries is how many deliveries ended with this outcome.
func (m Metrics) Deliveries(outcome string) int {
	return int(m[`rollbackd_deliveries_total{outcome="`+outcome+`"}`])
}

// Settled is how many deliveries have ended in all.
func (m Metrics) Settled() int {
	sum := 0.0
	for sample, v := range m {
		if strings.HasPrefix(sample, "rollbackd_deliveries_total{") {
			sum += v
		}
	}
	return int(sum)
}
