package composetest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// pod has what the tests ask of a pod's template; known fields only, since the file holds many more.
type pod struct {
	Spec struct {
		TerminationGracePeriodSeconds int `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               struct {
			RunAsNonRoot bool `yaml:"runAsNonRoot"`
			FSGroup      int  `yaml:"fsGroup"`
		} `yaml:"securityContext"`
		Containers []container `yaml:"containers"`
		Volumes    []struct {
			Name   string `yaml:"name"`
			Secret struct {
				SecretName string `yaml:"secretName"`
			} `yaml:"secret"`
		} `yaml:"volumes"`
	} `yaml:"spec"`
}

type container struct {
	Image string   `yaml:"image"`
	Args  []string `yaml:"args"`
	Env   []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	VolumeMounts []struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
	LivenessProbe   probe `yaml:"livenessProbe"`
	ReadinessProbe  probe `yaml:"readinessProbe"`
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
	} `yaml:"securityContext"`
}

type probe struct {
	HTTPGet struct {
		Path string `yaml:"path"`
		Port string `yaml:"port"`
	} `yaml:"httpGet"`
}

type workload struct {
	Kind string `yaml:"kind"`
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"selector"`
		Template struct {
			Metadata struct {
				Labels map[string]string `yaml:"labels"`
			} `yaml:"metadata"`
			pod `yaml:",inline"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

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

func TestEveryKubernetesFileIsListed(t *testing.T) {
	listed := readYAML[struct {
		Resources []string `yaml:"resources"`
	}](t, "../kubernetes/kustomization.yaml").Resources
	inList := map[string]bool{"kustomization.yaml": true}
	for _, name := range listed {
		inList[name] = true
		object := readYAML[struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string `yaml:"kind"`
			Metadata   struct {
				Name string `yaml:"name"`
			} `yaml:"metadata"`
		}](t, filepath.Join("../kubernetes", name))
		if object.APIVersion == "" || object.Kind == "" || object.Metadata.Name == "" {
			t.Errorf("%s is no Kubernetes object: %+v", name, object)
		}
	}
	paths, err := filepath.Glob("../kubernetes/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if !inList[filepath.Base(path)] {
			t.Errorf("%s is not in kustomization.yaml", path)
		}
	}
}

// The pods' environment, with the files of the Secret in their place, must be what the program accepts.
func TestPodsGetAGoodConfiguration(t *testing.T) {
	secret := readYAML[struct {
		StringData map[string]string `yaml:"stringData"`
	}](t, "../kubernetes/secret.yaml").StringData
	settings := readYAML[struct {
		Data map[string]string `yaml:"data"`
	}](t, "../kubernetes/configmap.yaml").Data
	dir := t.TempDir()
	for name, value := range secret {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, command := range map[string]string{
		"../kubernetes/deployment.yaml": "run", "../kubernetes/migrate.yaml": "migrate",
	} {
		spec := readYAML[workload](t, path).Spec.Template.Spec
		c := spec.Containers[0]
		if len(spec.Containers) != 1 || len(c.Args) != 1 || c.Args[0] != command {
			t.Errorf("%s runs %v, want %s", path, c.Args, command)
		}
		mount := c.VolumeMounts[0]
		if len(spec.Volumes) != 1 || mount.Name != spec.Volumes[0].Name || spec.Volumes[0].Secret.SecretName != "rollbackd" {
			t.Errorf("%s does not mount the Secret", path)
		}
		var env []string
		for name, value := range settings {
			env = append(env, name+"="+value)
		}
		for _, e := range c.Env {
			env = append(env, e.Name+"="+strings.Replace(e.Value, mount.MountPath, dir, 1))
		}
		inEffect := accepted(t, path, env)
		if command == "run" {
			enough(t, path, time.Duration(spec.TerminationGracePeriodSeconds)*time.Second, inEffect)
		}
	}
}

func TestPodsAreProbedAndMayDoLittle(t *testing.T) {
	d := readYAML[workload](t, "../kubernetes/deployment.yaml")
	for key, value := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Metadata.Labels[key] != value {
			t.Errorf("the Deployment selects %s=%s, which its pods do not have", key, value)
		}
	}
	c := d.Spec.Template.Spec.Containers[0]
	if c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
		t.Errorf("probes ask %q and %q", c.LivenessProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path)
	}
	for _, path := range []string{"../kubernetes/deployment.yaml", "../kubernetes/migrate.yaml"} {
		spec := readYAML[workload](t, path).Spec.Template.Spec
		s := spec.Containers[0].SecurityContext
		if !spec.SecurityContext.RunAsNonRoot || spec.SecurityContext.FSGroup == 0 || !s.ReadOnlyRootFilesystem ||
			s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
			t.Errorf("%s: the container may run as root, write its file system or gain rights, or cannot read its Secret", path)
		}
	}
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
			if !strings.ContainsAny(r.Expr, "<>=") || strings.Count(r.Expr, "(") != strings.Count(r.Expr, ")") ||
				strings.Count(r.Expr, "{") != strings.Count(r.Expr, "}") {
				t.Errorf("%s: expression %q compares nothing, or its brackets do not match", r.Alert, r.Expr)
			}
		}
	}
	if len(seen) < 8 {
		t.Errorf("only %d alerts found", len(seen))
	}
}
