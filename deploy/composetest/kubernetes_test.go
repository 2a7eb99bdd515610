package composetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yannh/kubeconform/pkg/validator"
	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
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

// overlays are what people apply: the daemons of each, and its Job that runs before.
var overlays = []string{"dev", "production"}

const manifests = "../kubernetes"

// build is what `kubectl apply -k` would send for a folder.
func build(t *testing.T, folder string) []byte {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(),
		filepath.Join(manifests, folder))
	if err != nil {
		t.Fatalf("build %s: %v", folder, err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatalf("build %s: %v", folder, err)
	}
	return text
}

// objects are those of one kind, by name.
func objects[T any](t *testing.T, text []byte, kind string) map[string]T {
	t.Helper()
	found := map[string]T{}
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var node yaml.Node
		err := dec.Decode(&node)
		if errors.Is(err, io.EOF) {
			return found
		}
		var head struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := errors.Join(err, node.Decode(&head)); err != nil {
			t.Fatal(err)
		}
		if head.Kind != kind {
			continue
		}
		var object T
		if err := node.Decode(&object); err != nil {
			t.Fatal(err)
		}
		found[head.Metadata.Name] = object
	}
}

// newer are fields that came after the API that kustomize's library carries, which is 1.21's: where, and their schema.
var newer = map[string]map[string]any{
	"io.k8s.api.policy.v1.PodDisruptionBudgetSpec": { // 1.26
		"unhealthyPodEvictionPolicy": map[string]any{"type": "string", "enum": []string{"AlwaysAllow", "IfHealthyBudget"}},
	},
}

// schemas writes a strict JSON schema for each kind that is named, from Kubernetes' API as kustomize's library carries
// it, and returns where kubeconform finds them. No network is asked.
func schemas(t *testing.T, kinds map[string]string) string {
	t.Helper()
	openapi.SchemaForResourceType(kyaml.TypeMeta{}) // which makes the library read the API
	text, err := json.Marshal(openapi.Schema())
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(text, &api); err != nil {
		t.Fatal(err)
	}
	for name, definition := range api.Definitions {
		if properties, ok := definition["properties"].(map[string]any); ok {
			maps.Copy(properties, newer[name])
			if _, open := definition["additionalProperties"]; !open {
				definition["additionalProperties"] = false
			}
		}
		if definition["format"] == "int-or-string" {
			delete(definition, "format")
			definition["type"] = []string{"integer", "string"}
		}
		if strings.HasSuffix(name, ".resource.Quantity") {
			definition["type"] = []string{"number", "string"}
		}
	}
	dir := t.TempDir()
	for kind, name := range kinds {
		if api.Definitions[name] == nil {
			t.Fatalf("the API has no %s", name)
		}
		text, err := json.Marshal(map[string]any{
			"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/" + name,
			"definitions": api.Definitions,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, kind+".json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "{{ .ResourceKind }}.json")
}

var kinds = map[string]string{
	"deployment": "io.k8s.api.apps.v1.Deployment", "job": "io.k8s.api.batch.v1.Job",
	"service": "io.k8s.api.core.v1.Service", "configmap": "io.k8s.api.core.v1.ConfigMap",
	"secret": "io.k8s.api.core.v1.Secret", "poddisruptionbudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
	"networkpolicy": "io.k8s.api.networking.v1.NetworkPolicy",
}

// Given what each overlay sends, then it keeps to Kubernetes' schemas, with no field that these do not know.
func TestManifestsKeepToTheSchemas(t *testing.T) {
	v, err := validator.New([]string{schemas(t, kinds)}, validator.Opts{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	valid := map[string]bool{}
	for _, overlay := range overlays {
		for _, folder := range []string{overlay, overlay + "/migrate"} {
			text := build(t, filepath.Join("overlays", folder))
			for _, r := range v.Validate(folder, io.NopCloser(bytes.NewReader(text))) {
				signature, err := r.Resource.Signature()
				if err != nil || r.Status != validator.Valid {
					t.Errorf("%s: %+v: %v %v %v", folder, signature, err, r.Err, r.ValidationErrors)
					continue
				}
				valid[strings.ToLower(signature.Kind)] = true
			}
		}
	}
	if want := slices.Sorted(maps.Keys(kinds)); !slices.Equal(slices.Sorted(maps.Keys(valid)), want) {
		t.Errorf("found %v, want %v", valid, want)
	}
	// that the schemas refuse what is wrong
	text := string(build(t, "overlays/dev"))
	for wrong, right := range map[string]string{
		"terminationGracePeriod: 40": "terminationGracePeriodSeconds: 40", "replicas: one": "replicas: 1",
		"maxUnavailable: {}": "maxUnavailable: 1", "podSelector: 1": "podSelector: {}",
	} {
		broken := strings.Replace(text, right, wrong, 1)
		if broken == text {
			t.Errorf("no manifest has %q", right)
		}
		if !slices.ContainsFunc(v.Validate("broken", io.NopCloser(strings.NewReader(broken))), func(r validator.Result) bool {
			return r.Status == validator.Invalid
		}) {
			t.Errorf("%q keeps to the schemas", wrong)
		}
	}
}

// Given the folders of manifests, then no file in them is left out of what is applied.
func TestEveryKubernetesFileIsListed(t *testing.T) {
	err := filepath.WalkDir(manifests, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "kustomization.yaml" {
			return err
		}
		list, err := os.ReadFile(filepath.Join(filepath.Dir(path), "kustomization.yaml"))
		if err != nil || !strings.Contains(string(list), d.Name()) {
			t.Errorf("%s is in no kustomization.yaml: %v", path, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// workloads are the pods of an overlay, by the command they run.
func workloads(t *testing.T, overlay string) map[string]workload {
	t.Helper()
	daemons := objects[workload](t, build(t, "overlays/"+overlay), "Deployment")
	jobs := objects[workload](t, build(t, "overlays/"+overlay+"/migrate"), "Job")
	found := map[string]workload{"run": daemons["rollbackd"], "migrate": jobs["rollbackd-migrate"]}
	if len(daemons) != 1 || len(jobs) != 1 {
		t.Fatalf("%s has %d Deployments and %d Jobs, want one of each", overlay, len(daemons), len(jobs))
	}
	return found
}

// The pods' environment, with the files of the Secret in their place, must be what the program accepts.
func TestPodsGetAGoodConfiguration(t *testing.T) {
	type secret struct {
		StringData map[string]string `yaml:"stringData"`
	}
	type config struct {
		Data map[string]string `yaml:"data"`
	}
	secrets := objects[secret](t, build(t, "overlays/dev/migrate"), "Secret")
	for _, overlay := range overlays {
		for command, w := range workloads(t, overlay) {
			what, spec := overlay+" "+command, w.Spec.Template.Spec
			folder := "overlays/" + overlay
			if command == "migrate" {
				folder += "/migrate"
			}
			c, mount := spec.Containers[0], spec.Containers[0].VolumeMounts[0]
			if len(spec.Containers) != 1 || !slices.Equal(c.Args, []string{command}) {
				t.Errorf("%s runs %v", what, c.Args)
			}
			held, ok := secrets[spec.Volumes[0].Secret.SecretName]
			if len(spec.Volumes) != 1 || mount.Name != spec.Volumes[0].Name || !ok {
				t.Fatalf("%s mounts no Secret of the overlay for trying out: %+v", what, spec.Volumes)
			}
			dir := t.TempDir()
			for name, value := range held.StringData {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var env []string
			for name, value := range objects[config](t, build(t, folder), "ConfigMap")["rollbackd"].Data {
				env = append(env, name+"="+value)
			}
			if len(env) == 0 {
				t.Errorf("%s is applied without settings", what)
			}
			for _, e := range c.Env {
				env = append(env, e.Name+"="+strings.Replace(e.Value, mount.MountPath, dir, 1))
			}
			inEffect := accepted(t, what, env)
			if command == "run" {
				enough(t, what, time.Duration(spec.TerminationGracePeriodSeconds)*time.Second, inEffect)
			}
		}
	}
}

// Given what people build their own on, then no word of it is a password, and its image is named by a digest.
func TestProductionHoldsNoSecretAndPinsItsImage(t *testing.T) {
	for _, folder := range []string{"base", "settings", "migrate", "overlays/production", "overlays/production/migrate"} {
		if found := objects[any](t, build(t, folder), "Secret"); len(found) > 0 {
			t.Errorf("%s holds the Secrets %v", folder, slices.Sorted(maps.Keys(found)))
		}
	}
	for command, w := range workloads(t, "production") {
		if image := w.Spec.Template.Spec.Containers[0].Image; !strings.Contains(image, "@sha256:") {
			t.Errorf("%s has the image %s, want one by its digest", command, image)
		}
	}
}

func TestPodsAreProbedAndMayDoLittle(t *testing.T) {
	for _, overlay := range overlays {
		for command, w := range workloads(t, overlay) {
			spec := w.Spec.Template.Spec
			c := spec.Containers[0]
			s := c.SecurityContext
			if !spec.SecurityContext.RunAsNonRoot || spec.SecurityContext.FSGroup == 0 || !s.ReadOnlyRootFilesystem ||
				s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
				t.Errorf("%s %s: the container may run as root, write its file system or gain rights, or cannot read its Secret",
					overlay, command)
			}
			if command == "migrate" {
				continue
			}
			if c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
				t.Errorf("probes ask %q and %q", c.LivenessProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path)
			}
		}
	}
}

// Given the pods of daemons and Jobs, then Deployment, budget and Service choose the daemons, the network's policy
// chooses both, and nothing chooses by a label that no pod has.
func TestWhoeverChoosesPodsFindsThem(t *testing.T) {
	type chooser struct {
		Spec struct {
			Selector    yaml.Node `yaml:"selector"`
			PodSelector struct {
				MatchExpressions []struct {
					Key    string
					Values []string
				} `yaml:"matchExpressions"`
			} `yaml:"podSelector"`
		} `yaml:"spec"`
	}
	const key = "app.kubernetes.io/component"
	text := build(t, "overlays/production")
	for _, kind := range []string{"Deployment", "PodDisruptionBudget"} {
		var selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		node := objects[chooser](t, text, kind)["rollbackd"].Spec.Selector
		if err := node.Decode(&selector); err != nil || !maps.Equal(selector.MatchLabels, map[string]string{key: "daemon"}) {
			t.Errorf("the %s chooses %v, %v", kind, selector.MatchLabels, err)
		}
	}
	var service map[string]string
	node := objects[chooser](t, text, "Service")["rollbackd"].Spec.Selector
	if err := node.Decode(&service); err != nil || !maps.Equal(service, map[string]string{key: "daemon"}) {
		t.Errorf("the Service chooses %v, %v", service, err)
	}
	policy := objects[chooser](t, text, "NetworkPolicy")["rollbackd"].Spec.PodSelector.MatchExpressions
	for command, component := range map[string]string{"run": "daemon", "migrate": "migrate"} {
		labels := workloads(t, "production")[command].Spec.Template.Metadata.Labels
		if labels[key] != component {
			t.Errorf("the pods that %s have the labels %v", command, labels)
		}
		if len(policy) != 1 || policy[0].Key != key || !slices.Contains(policy[0].Values, component) {
			t.Errorf("the NetworkPolicy chooses %+v, and not the pods that %s", policy, command)
		}
	}
}
