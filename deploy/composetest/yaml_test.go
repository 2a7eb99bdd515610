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

func readYAML[T any](t *testing.T, path string) T {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var v T
	dec := yaml.NewDecoder(bytes.NewReader(content))
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Fatalf("%s: holds more than one document, or a bad one: %v", path, err)
	}
	return v
}

var duration = regexp.MustCompile(`^[0-9]+[smhd]$`)

func TestAlertsAreWellFormed(t *testing.T) {
	alerts := readYAML[struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expr        string            `yaml:"expr"`
				For         string            `yaml:"for"`
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}](t, "../prometheus/alerts.yaml")
	seen := make(map[string]bool)
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || seen[r.Alert] {
				t.Errorf("alert %q has no name, or one that is taken", r.Alert)
			}
			seen[r.Alert] = true
			if r.For != "" && !duration.MatchString(r.For) {
				t.Errorf("%s: for %q is no duration", r.Alert, r.For)
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s does not say what it means and what to do", r.Alert)
			}
			if !strings.ContainsAny(r.Expr, "<>=") && !strings.Contains(r.Expr, "unless") { // promtool reads the rest
				t.Errorf("%s: expression %q compares nothing", r.Alert, r.Expr)
			}
		}
	}
	if len(seen) < 8 {
		t.Errorf("only %d alerts found", len(seen))
	}
}

// Given the Prometheus operator, then the monitor chooses the pods of the Deployment and asks the port that they have.
func TestThePodMonitorFindsThePods(t *testing.T) {
	type labels struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	monitor := readYAML[struct {
		Kind string `yaml:"kind"`
		Spec struct {
			Selector  labels `yaml:"selector"`
			Endpoints []struct {
				Port string `yaml:"port"`
				Path string `yaml:"path"`
			} `yaml:"podMetricsEndpoints"`
		} `yaml:"spec"`
	}](t, "../prometheus/podmonitor.yaml")
	pods := readYAML[struct {
		Spec struct {
			Template struct {
				Metadata struct {
					Labels map[string]string `yaml:"labels"`
				} `yaml:"metadata"`
				Spec struct {
					Containers []struct {
						Ports []struct {
							Name string `yaml:"name"`
						} `yaml:"ports"`
					} `yaml:"containers"`
				} `yaml:"spec"`
			} `yaml:"template"`
		} `yaml:"spec"`
	}](t, "../kubernetes/base/deployment.yaml").Spec.Template
	if monitor.Kind != "PodMonitor" || len(monitor.Spec.Selector.MatchLabels) == 0 || len(monitor.Spec.Endpoints) != 1 {
		t.Fatalf("the monitor is %+v", monitor)
	}
	for name, value := range monitor.Spec.Selector.MatchLabels {
		if pods.Metadata.Labels[name] != value {
			t.Errorf("it wants %s=%s, the pods have %v", name, value, pods.Metadata.Labels)
		}
	}
	if port := monitor.Spec.Endpoints[0].Port; pods.Spec.Containers[0].Ports[0].Name != port {
		t.Errorf("it asks the port %s, the pods have %+v", port, pods.Spec.Containers[0].Ports)
	}
	if path := monitor.Spec.Endpoints[0].Path; path != "/metrics" {
		t.Errorf("it asks for %s", path)
	}
}
