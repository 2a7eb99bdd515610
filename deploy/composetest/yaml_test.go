package composetest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func readYAML(t *testing.T, path string) (doc any) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(content))
	if err := dec.Decode(&doc); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Fatalf("%s: holds more than one document, or a bad one: %v", path, err)
	}
	return doc
}

var duration = regexp.MustCompile(`^[0-9]+[smhd]$`)

func TestAlertsAreWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	for _, g := range at[[]any](readYAML(t, "../prometheus/alerts.yaml"), "groups") {
		for _, r := range at[[]any](g, "rules") {
			alert, lasts, expr := at[string](r, "alert"), at[string](r, "for"), at[string](r, "expr")
			if alert == "" || seen[alert] {
				t.Errorf("alert %q has no name, or one that is taken", alert)
			}
			seen[alert] = true
			if lasts != "" && !duration.MatchString(lasts) {
				t.Errorf("%s: for %q is no duration", alert, lasts)
			}
			if s := at[string](r, "labels", "severity"); s != "page" && s != "ticket" {
				t.Errorf("%s: severity %q", alert, s)
			}
			if at[string](r, "annotations", "summary") == "" || at[string](r, "annotations", "description") == "" {
				t.Errorf("%s does not say what it means and what to do", alert)
			}
			if !strings.ContainsAny(expr, "<>=") && !strings.Contains(expr, "unless") { // promtool reads the rest
				t.Errorf("%s: expression %q compares nothing", alert, expr)
			}
		}
	}
	if len(seen) < 8 {
		t.Errorf("only %d alerts found", len(seen))
	}
}

// Given the Prometheus operator, then the monitor chooses the pods of the Deployment and asks the port that they have.
func TestThePodMonitorFindsThePods(t *testing.T) {
	monitor := readYAML(t, "../prometheus/podmonitor.yaml")
	pod := at[any](readYAML(t, "../kubernetes/base/deployment.yaml"), "spec", "template")
	chosen, asked := at[map[string]any](monitor, "spec", "selector", "matchLabels"), at[[]any](monitor, "spec",
		"podMetricsEndpoints")
	if at[string](monitor, "kind") != "PodMonitor" || len(chosen) == 0 || len(asked) != 1 {
		t.Fatalf("the monitor is %+v", monitor)
	}
	for name, value := range chosen {
		if got := at[string](pod, "metadata", "labels", name); got != value {
			t.Errorf("it wants %s=%s, the pods have %q", name, value, got)
		}
	}
	port := at[string](asked[0], "port")
	if has := at[string](pod, "spec", "containers", 0, "ports", 0, "name"); port == "" || has != port {
		t.Errorf("it asks the port %q, the pods have %q", port, has)
	}
	if path := at[string](asked[0], "path"); path != "/metrics" {
		t.Errorf("it asks for %s", path)
	}
}
