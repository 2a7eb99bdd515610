package composetest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	keda "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

const chartFolder = "../helm/rollbackd"

// values are what somebody gives with --values: YAML, over those of the chart.
type values string

const (
	least values = "image: {repository: registry.example.com/rollbackd}"
	// everything switches all on, and fills what the chart leaves empty.
	everything values = `
image: {repository: registry.example.com/rollbackd, tag: v1}
imagePullSecrets: [{name: pull}]
settingsFrom: [{configMapRef: {name: more}}]
volumes: [{name: files, configMap: {name: files}}]
volumeMounts: [{name: files, mountPath: /etc/rollbackd}]
podAnnotations: {a: b}
nodeSelector: {a: b}
tolerations: [{key: a, operator: Exists}]
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]
relay: {enabled: true}
keda: {enabled: true, minReplicas: 0, queues: [stock.rollback, points.refund]}
podMonitor: {enabled: true, labels: {a: b}}
networkPolicy: {egress: [{ports: [{port: 443, protocol: TCP}]}]}
`
)

func (v values) tree(t *testing.T) (tree map[string]any) {
	t.Helper()
	must(0, yaml.Unmarshal([]byte(v), &tree))(t)
	return tree
}

func loaded(t *testing.T) *chart.Chart { t.Helper(); return must(loader.Load(chartFolder))(t) }

// rendered is what `helm install shop` would send, by templates; unchecked values need not keep to the schema.
func rendered(t *testing.T, tree map[string]any, unchecked bool) (map[string]string, error) {
	t.Helper()
	c := loaded(t)
	all, err := util.ToRenderValuesWithSchemaValidation(c, tree, common.ReleaseOptions{
		Name: "shop", Namespace: "orders", Revision: 1, IsInstall: true,
	}, nil, unchecked)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

// objects are those of a release by kind and name, decoded with no room for a field that their types do not have.
func objects(t *testing.T, v values) map[string]runtime.Object {
	t.Helper()
	found := map[string]runtime.Object{}
	for path, text := range must(rendered(t, v.tree(t), false))(t) {
		if filepath.Ext(path) != ".yaml" {
			continue
		}
		for _, document := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
			if strings.TrimSpace(document) == "" {
				continue
			}
			object, err := decode(t, document)
			if err != nil {
				t.Fatalf("%s: %v\n%s", path, err, document)
			}
			name := reflect.ValueOf(object).Elem().FieldByName("Name").String()
			found[object.GetObjectKind().GroupVersionKind().Kind+" "+name] = object
		}
	}
	return found
}

func decode(t *testing.T, document string) (runtime.Object, error) {
	t.Helper()
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, batch.AddToScheme, core.AddToScheme,
		network.AddToScheme, policy.AddToScheme, keda.AddToScheme, monitoring.AddToScheme} {
		must(0, add(known))(t)
	}
	codecs := serializer.NewCodecFactory(known, serializer.EnableStrict)
	object, kind, err := codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
	if err == nil && *kind == (schema.GroupVersionKind{}) {
		err = fmt.Errorf("the object has no kind")
	}
	return object, err
}

// object is one of a release.
func object[T runtime.Object](t *testing.T, v values, name string) (found T) {
	t.Helper()
	all := objects(t, v)
	found, ok := all[name].(T)
	if !ok {
		t.Fatalf("no %s among %v", name, slices.Sorted(maps.Keys(all)))
	}
	return found
}

// Given the least that must be said, and everything that may be, then Helm's linter has nothing to say, and what is
// sent are these objects, with no field that the types of Kubernetes, KEDA and the Prometheus operator do not have.
func TestTheChartIsLintedAndItsObjectsKeepToTheirTypes(t *testing.T) {
	always := []string{"Deployment shop-rollbackd", "Job shop-rollbackd-migrate", "NetworkPolicy shop-rollbackd",
		"PodDisruptionBudget shop-rollbackd", "Service shop-rollbackd", "ServiceAccount shop-rollbackd"}
	for name, c := range map[string]struct {
		values values
		more   []string
	}{
		"least": {least, nil},
		"everything": {everything, []string{"Deployment shop-rollbackd-relay", "PodMonitor shop-rollbackd",
			"PodMonitor shop-rollbackd-relay", "ScaledObject shop-rollbackd", "TriggerAuthentication shop-rollbackd"}},
	} {
		for _, m := range lint.RunAll(chartFolder, c.values.tree(t), "orders").Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
		want := slices.Sorted(slices.Values(slices.Concat(always, c.more)))
		if got := slices.Sorted(maps.Keys(objects(t, c.values))); !slices.Equal(got, want) {
			t.Errorf("%s: sent is %v, want %v", name, got, want)
		}
	}
	for _, wrong := range []string{ // that the types refuse what is wrong
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {port: 1}}",
		"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {replicas: one}}",
		"{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {name: a}, spec: {minReplicas: 1}}",
		"{apiVersion: monitoring.coreos.com/v1, kind: PodMonitor, metadata: {name: a}, spec: {endpoints: []}}",
	} {
		if _, err := decode(t, wrong); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}

// leaves are the paths of what a user may set: maps whose keys are theirs, and lists, are one.
func leaves(tree map[string]any, path ...string) (all [][]string) {
	for name, value := range tree {
		here := slices.Concat(path, []string{name})
		if inner, ok := value.(map[string]any); ok && len(inner) > 0 {
			all = append(all, leaves(inner, here...)...)
		} else {
			all = append(all, here)
		}
	}
	return all
}

// set is tree with another value at a path.
func set(tree map[string]any, value any, path ...string) map[string]any {
	tree = maps.Clone(tree)
	if tree == nil {
		tree = map[string]any{}
	}
	if len(path) > 1 {
		inner, _ := tree[path[0]].(map[string]any)
		value = set(inner, value, path[1:]...)
	}
	tree[path[0]] = value
	return tree
}

// Given each value of values.yaml, when it is another one, then something else is sent, and when it is of a type that
// cannot be meant, then it is refused.
func TestEachValueIsUsedAndChecked(t *testing.T) {
	paths := leaves(loaded(t).Values)
	if len(paths) < 50 {
		t.Fatalf("only %d values found", len(paths))
	}
	for _, path := range paths {
		changed := false
		for _, v := range []values{everything, least} { // with KEDA nobody else says how many daemons there are
			before := must(rendered(t, v.tree(t), false))(t)
			for _, other := range []any{"another", 7, false, []any{map[string]any{"another": "one"}},
				map[string]any{"another": "one"}} {
				after, err := rendered(t, set(v.tree(t), other, path...), true)
				changed = changed || err == nil && !maps.Equal(before, after)
			}
		}
		if !changed {
			t.Errorf("%v changes nothing", path)
		}
		if _, err := rendered(t, set(everything.tree(t), []any{[]any{}}, path...), false); err == nil {
			t.Errorf("%v may be a list of lists", path)
		}
	}
}

// Given values that look right and are not, then nothing is sent, and the error says what is wrong.
func TestWrongValuesAreRefused(t *testing.T) {
	for v, says := range map[values]string{
		"{}":                        "push the image",
		least + "\nreplicaCount: 3": "replicaCount",
		least + "\nrelay: {enabled: true, replica: 1}":                "replica",
		least + "\nsettings: {ROLLBACKD_LANES: 8}":                    "string", // a million would become 1e+06
		least + "\nsettings: {ROLLBACKD_HTTP_ADDR: '127.0.0.1:8080'}": "ROLLBACKD_HTTP_ADDR",
		least + "\nsettings: {ROLLBACKD_DRAIN_TIMEOUT: '25'}":         "ROLLBACKD_DRAIN_TIMEOUT",
		everything + "\nsettings: {ROLLBACKD_OUTBOX: 'on'}":           "relay.enabled in place of ROLLBACKD_OUTBOX",
		"image: {repository: example.com/rollbackd, digest: sha1:0}":  "digest",
	} {
		if _, err := rendered(t, v.tree(t), false); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error that says %q", v, err, says)
		}
	}
}

// pods are the templates of all pods, by the command they run.
func pods(t *testing.T, v values) map[string]core.PodTemplateSpec {
	t.Helper()
	found := map[string]core.PodTemplateSpec{}
	for _, o := range objects(t, v) {
		var pod core.PodTemplateSpec
		switch o := o.(type) {
		case *apps.Deployment:
			pod = o.Spec.Template
		case *batch.Job:
			pod = o.Spec.Template
		default:
			continue
		}
		if len(pod.Spec.Containers) != 1 || len(pod.Spec.Containers[0].Args) != 1 {
			t.Fatalf("a pod of %+v", pod.Spec.Containers)
		}
		found[pod.Spec.Containers[0].Args[0]] = pod
	}
	return found
}

// The pods' environment, with the files of their Secrets in their place, must be what the program accepts; and a pod
// has the time that its drain may take.
func TestPodsGetAGoodConfiguration(t *testing.T) {
	held := map[string]string{"amqp-url": "amqp://rollbackd:password@rabbitmq:5672/", "admin-token": "a-long-random-word",
		"mysql-dsn": "rollbackd:password@tcp(mysql:3306)/shop", "redis-url": "redis://:password@redis:6379/0"}
	dir := t.TempDir()
	for name, value := range held {
		must(0, os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600))(t)
	}
	const longer = "\nsettings: {ROLLBACKD_DRAIN_TIMEOUT: 1m30.5s, ROLLBACKD_LANES: '8'}"
	for _, v := range []values{least, everything, everything + longer} {
		secrets := map[string]string{"run": "rollbackd", "migrate": "rollbackd-migrate", "relay": "rollbackd"}
		for command, pod := range pods(t, v) {
			c := pod.Spec.Containers[0]
			secret, mount := pod.Spec.Volumes[0], c.VolumeMounts[0]
			if secret.Secret == nil || secret.Secret.SecretName != secrets[command] || mount.Name != secret.Name {
				t.Errorf("%s mounts %+v, want the Secret %s", command, secret, secrets[command])
			}
			var env []string
			for _, e := range c.Env {
				value := strings.Replace(e.Value, mount.MountPath, dir, 1)
				if command == "relay" && e.Name == "ROLLBACKD_MYSQL_DSN_FILE" { // the relay asks for no lock
					env = append(env, "ROLLBACKD_REDIS_URL=off")
				}
				env = append(env, e.Name+"="+value)
			}
			inEffect := accepted(t, command, env)
			grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
			enough(t, command, grace, inEffect)
			if strings.HasSuffix(string(v), longer) && (grace < 90*time.Second || inEffect["ROLLBACKD_LANES"] != "8") {
				t.Errorf("%s has %v to end and %s lanes", command, grace, inEffect["ROLLBACKD_LANES"])
			}
			if outbox := inEffect["ROLLBACKD_OUTBOX"]; (outbox == "on") != (command == "migrate" && v != least) {
				t.Errorf("%s has the outbox %s", command, outbox)
			}
		}
	}
}

func TestPodsAreProbedAndMayDoLittle(t *testing.T) {
	for command, pod := range pods(t, everything) {
		c, mine := pod.Spec.Containers[0], pod.Spec.SecurityContext
		if own := c.SecurityContext; *own.AllowPrivilegeEscalation || !*own.ReadOnlyRootFilesystem ||
			!slices.Equal(own.Capabilities.Drop, []core.Capability{"ALL"}) || !*mine.RunAsNonRoot || *mine.FSGroup == 0 ||
			*pod.Spec.AutomountServiceAccountToken {
			t.Errorf("%s may run as root, write its file system, gain rights or use a token, or cannot read its Secret", command)
		}
		if !strings.HasSuffix(c.Image, "/rollbackd:v1") {
			t.Errorf("%s runs %s", command, c.Image)
		}
		switch probed := c.LivenessProbe != nil && c.ReadinessProbe != nil; {
		case probed != (command != "migrate"):
			t.Errorf("%s is probed: %v", command, probed)
		case probed && (c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" ||
			c.Ports[0].ContainerPort != 8080):
			t.Errorf("%s is asked %+v and %+v", command, c.LivenessProbe.HTTPGet, c.ReadinessProbe.HTTPGet)
		}
	}
	digest := "sha256:" + strings.Repeat("0", 64)
	pinned := pods(t, values("image: {repository: registry.example.com/rollbackd, digest: '"+digest+"'}"))["run"]
	if image := pinned.Spec.Containers[0].Image; image != "registry.example.com/rollbackd@"+digest {
		t.Errorf("by its digest the image is %s", image)
	}
}

// Given the pods of daemons, relay and Job, then Service and budget choose the daemons, Deployments and monitors their
// own, the network's policy all, and none chooses a pod of another release; KEDA alone sets the number of daemons.
func TestWhoeverChoosesPodsFindsThem(t *testing.T) {
	const name = "shop-rollbackd"
	daemons := object[*apps.Deployment](t, everything, "Deployment "+name)
	relay := object[*apps.Deployment](t, everything, "Deployment "+name+"-relay")
	budget := object[*policy.PodDisruptionBudget](t, everything, "PodDisruptionBudget "+name)
	wall := object[*network.NetworkPolicy](t, everything, "NetworkPolicy "+name)
	chosen := map[string]map[string]string{
		"Service":             object[*core.Service](t, everything, "Service "+name).Spec.Selector,
		"PodDisruptionBudget": budget.Spec.Selector.MatchLabels, "NetworkPolicy": wall.Spec.PodSelector.MatchLabels,
		"Deployment": daemons.Spec.Selector.MatchLabels, "relay": relay.Spec.Selector.MatchLabels,
	}
	for who, suffix := range map[string]string{"PodMonitor": "", "relay's PodMonitor": "-relay"} {
		monitor := object[*monitoring.PodMonitor](t, everything, "PodMonitor "+name+suffix)
		chosen[who] = monitor.Spec.Selector.MatchLabels
		asked := monitor.Spec.PodMetricsEndpoints[0]
		if *asked.Port != daemons.Spec.Template.Spec.Containers[0].Ports[0].Name || asked.Path != "/metrics" {
			t.Errorf("the %s asks %s%s", who, *asked.Port, asked.Path)
		}
	}
	for who, by := range chosen {
		want := []string{"run"}
		switch {
		case strings.HasPrefix(who, "relay"):
			want = []string{"relay"}
		case who == "NetworkPolicy":
			want = []string{"migrate", "relay", "run"}
		}
		var got []string
		for command, pod := range pods(t, everything) {
			if labels.SelectorFromSet(by).Matches(labels.Set(pod.Labels)) {
				got = append(got, command)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) || by["app.kubernetes.io/instance"] != "shop" {
			t.Errorf("the %s chooses the pods that %v by %v, want %v", who, got, by, want)
		}
	}
	scaled := object[*keda.ScaledObject](t, everything, "ScaledObject "+name)
	target := scaled.Spec.ScaleTargetRef.Name
	if target != name || daemons.Spec.Replicas != nil || *relay.Spec.Replicas != 2 {
		t.Errorf("KEDA scales %s; the daemons have %v replicas, the relay %v", target, daemons.Spec.Replicas,
			relay.Spec.Replicas)
	}
	if err := keda.CheckReplicaCountBoundsAreValid(scaled); err != nil {
		t.Error(err)
	}
	if err := keda.ValidateTriggers(scaled.Spec.Triggers); err != nil || len(scaled.Spec.Triggers) != 2 {
		t.Errorf("KEDA's triggers are %+v: %v", scaled.Spec.Triggers, err)
	}
}
