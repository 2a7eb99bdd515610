package composetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

// at is what stands at a path of a document, by names of fields and numbers of elements: the zero value where nothing
// of that type stands.
func at[T any](doc any, path ...any) (value T) {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			fields, _ := doc.(map[string]any)
			doc = fields[step]
		case int:
			elements, _ := doc.([]any)
			if step >= len(elements) {
				return value
			}
			doc = elements[step]
		}
	}
	value, _ = doc.(T)
	return value
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
func objects(t *testing.T, text []byte, kind string) map[string]any {
	t.Helper()
	found := map[string]any{}
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var object any
		err := dec.Decode(&object)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if at[string](object, "kind") == kind {
			found[at[string](object, "metadata", "name")] = object
		}
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

// pods are the templates of an overlay's pods, by the command they run.
func pods(t *testing.T, overlay string) map[string]any {
	t.Helper()
	daemons := objects(t, build(t, "overlays/"+overlay), "Deployment")
	jobs := objects(t, build(t, "overlays/"+overlay+"/migrate"), "Job")
	if len(daemons) != 1 || len(jobs) != 1 {
		t.Fatalf("%s has %d Deployments and %d Jobs, want one of each", overlay, len(daemons), len(jobs))
	}
	return map[string]any{"run": at[any](daemons["rollbackd"], "spec", "template"),
		"migrate": at[any](jobs["rollbackd-migrate"], "spec", "template")}
}

// The pods' environment, with the files of the Secret in their place, must be what the program accepts.
func TestPodsGetAGoodConfiguration(t *testing.T) {
	secrets := objects(t, build(t, "overlays/dev/migrate"), "Secret")
	for _, overlay := range overlays {
		for command, pod := range pods(t, overlay) {
			what, folder := overlay+" "+command, "overlays/"+overlay
			if command == "migrate" {
				folder += "/migrate"
			}
			c := at[any](pod, "spec", "containers", 0)
			if len(at[[]any](pod, "spec", "containers")) != 1 || !slices.Equal(at[[]any](c, "args"), []any{command}) {
				t.Errorf("%s runs %v", what, c)
			}
			held := at[map[string]any](secrets[at[string](pod, "spec", "volumes", 0, "secret", "secretName")], "stringData")
			if len(at[[]any](pod, "spec", "volumes")) != 1 || held == nil ||
				at[string](c, "volumeMounts", 0, "name") != at[string](pod, "spec", "volumes", 0, "name") {
				t.Fatalf("%s mounts no Secret of the overlay for trying out: %+v", what, pod)
			}
			dir := t.TempDir()
			for name, value := range held {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(fmt.Sprint(value)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var env []string
			for name, value := range at[map[string]any](objects(t, build(t, folder), "ConfigMap")["rollbackd"], "data") {
				env = append(env, fmt.Sprint(name, "=", value))
			}
			if len(env) == 0 {
				t.Errorf("%s is applied without settings", what)
			}
			for _, e := range at[[]any](c, "env") {
				value := strings.Replace(at[string](e, "value"), at[string](c, "volumeMounts", 0, "mountPath"), dir, 1)
				env = append(env, at[string](e, "name")+"="+value)
			}
			inEffect := accepted(t, what, env)
			if command == "run" {
				grace := time.Duration(at[int](pod, "spec", "terminationGracePeriodSeconds")) * time.Second
				enough(t, what, grace, inEffect)
			}
		}
	}
}

// Given what people build their own on, then no word of it is a password, and its image is named by a digest.
func TestProductionHoldsNoSecretAndPinsItsImage(t *testing.T) {
	for _, folder := range []string{"base", "settings", "migrate", "overlays/production", "overlays/production/migrate"} {
		if found := objects(t, build(t, folder), "Secret"); len(found) > 0 {
			t.Errorf("%s holds the Secrets %v", folder, slices.Sorted(maps.Keys(found)))
		}
	}
	for command, pod := range pods(t, "production") {
		image := at[string](pod, "spec", "containers", 0, "image")
		if !strings.Contains(image, "@sha256:") {
			t.Errorf("%s has the image %s, want one by its digest", command, image)
		}
	}
}

func TestPodsAreProbedAndMayDoLittle(t *testing.T) {
	for _, overlay := range overlays {
		for command, pod := range pods(t, overlay) {
			c, mine := at[any](pod, "spec", "containers", 0), at[any](pod, "spec", "securityContext")
			if mayRise := at[any](c, "securityContext", "allowPrivilegeEscalation"); mayRise != false ||
				!at[bool](mine, "runAsNonRoot") || at[int](mine, "fsGroup") == 0 ||
				!at[bool](c, "securityContext", "readOnlyRootFilesystem") {
				t.Errorf("%s %s: the container may run as root, write its file system or gain rights, or cannot read its Secret",
					overlay, command)
			}
			live, ready := at[string](c, "livenessProbe", "httpGet", "path"), at[string](c, "readinessProbe", "httpGet", "path")
			if command != "migrate" && (live != "/healthz" || ready != "/readyz") {
				t.Errorf("probes ask %q and %q", live, ready)
			}
		}
	}
}

// Given the pods of daemons and Jobs, then Deployment, budget and Service choose the daemons, the network's policy
// chooses both, and nothing chooses by a label that no pod has.
func TestWhoeverChoosesPodsFindsThem(t *testing.T) {
	const key = "app.kubernetes.io/component"
	text := build(t, "overlays/production")
	of := func(kind string, path ...any) any { return at[any](objects(t, text, kind)["rollbackd"], path...) }
	daemons := map[string]any{key: "daemon"}
	for kind, chosen := range map[string]any{
		"Deployment": of("Deployment", "spec", "selector"), "Service": of("Service", "spec"),
		"PodDisruptionBudget": of("PodDisruptionBudget", "spec", "selector"),
	} {
		by := "matchLabels"
		if kind == "Service" {
			by = "selector"
		}
		if got := at[map[string]any](chosen, by); !maps.Equal(got, daemons) {
			t.Errorf("the %s chooses %v", kind, got)
		}
	}
	policy := at[[]any](of("NetworkPolicy", "spec", "podSelector"), "matchExpressions")
	for command, component := range map[string]string{"run": "daemon", "migrate": "migrate"} {
		if label := at[string](pods(t, "production")[command], "metadata", "labels", key); label != component {
			t.Errorf("the pods that %s have the label %q", command, label)
		}
		if len(policy) != 1 || at[string](policy[0], "key") != key ||
			!slices.Contains(at[[]any](policy[0], "values"), any(component)) {
			t.Errorf("the NetworkPolicy chooses %+v, and not the pods that %s", policy, command)
		}
	}
}
