package composetest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// project loads compose.yaml with its schema, interpolation and consistency checks, and no variables but those given.
func project(t *testing.T, env ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../compose.yaml"}, cli.WithEnv(env))
	if err != nil {
		t.Fatal(err)
	}
	p, err := options.LoadProject(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatalf("load compose.yaml: %v", err)
	}
	return p
}

func service(t *testing.T, p *types.Project, name string) types.ServiceConfig {
	t.Helper()
	s, ok := p.Services[name]
	if !ok {
		t.Fatalf("compose.yaml has no service %s", name)
	}
	return s
}

func environ(s types.ServiceConfig) []string {
	var env []string
	for name, value := range s.Environment {
		if value != nil {
			env = append(env, name+"="+*value)
		}
	}
	slices.Sort(env)
	return env
}

func TestContainersGetAGoodConfiguration(t *testing.T) {
	for _, env := range [][]string{nil, {"RABBITMQ_PASSWORD=abc123", "MYSQL_PASSWORD=def456",
		"ADMIN_TOKEN=a-long-random-word"}} {
		for _, name := range []string{"rollbackd", "migrate"} {
			s := service(t, project(t, env...), name)
			accepted(t, name, environ(s))
			if text := strings.Join(environ(s), " "); len(env) > 0 && (!strings.Contains(text, ":abc123@") ||
				!strings.Contains(text, ":def456@")) {
				t.Errorf("%s does not use the passwords of the environment", name)
			}
		}
	}
}

func TestDaemonUsesTheServersOfTheProject(t *testing.T) {
	p := project(t)
	env := service(t, p, "rollbackd").Environment
	for variable, part := range map[string]string{
		"ROLLBACKD_AMQP_URL": "@rabbitmq:5672/", "ROLLBACKD_MYSQL_DSN": "@tcp(mysql:3306)/",
		"ROLLBACKD_REDIS_URL": "redis://redis:6379/",
	} {
		if value := env[variable]; value == nil || !strings.Contains(*value, part) {
			t.Errorf("%s does not name %s", variable, part)
		}
	}
	rabbit, mysql := service(t, p, "rabbitmq").Environment, service(t, p, "mysql").Environment
	if login := *rabbit["RABBITMQ_DEFAULT_USER"] + ":" + *rabbit["RABBITMQ_DEFAULT_PASS"] +
		"@"; !strings.Contains(*env["ROLLBACKD_AMQP_URL"], login) {
		t.Error("the daemon's login is not the one that RabbitMQ makes")
	}
	if dsn := *mysql["MYSQL_USER"] + ":" + *mysql["MYSQL_PASSWORD"] + "@tcp(mysql:3306)/" +
		*mysql["MYSQL_DATABASE"]; *env["ROLLBACKD_MYSQL_DSN"] != dsn {
		t.Error("the daemon's login or schema is not the one that MySQL makes")
	}
}

func TestDaemonStartsAfterItsServersAndTheMigration(t *testing.T) {
	p := project(t)
	for name, want := range map[string]map[string]string{
		"migrate": {"rabbitmq": types.ServiceConditionHealthy, "mysql": types.ServiceConditionHealthy},
		"rollbackd": {
			"rabbitmq": types.ServiceConditionHealthy, "mysql": types.ServiceConditionHealthy,
			"redis":   types.ServiceConditionHealthy,
			"migrate": types.ServiceConditionCompletedSuccessfully,
		},
	} {
		dependencies := service(t, p, name).DependsOn
		for other, condition := range want {
			if got := dependencies[other].Condition; got != condition {
				t.Errorf("%s waits for %s until %q, want %q", name, other, got, condition)
			}
			if condition == types.ServiceConditionHealthy && service(t, p, other).HealthCheck == nil {
				t.Errorf("%s has no health check, so %s would wait for ever", other, name)
			}
		}
	}
}

func TestImageIsBuiltFromTheRepository(t *testing.T) {
	for _, name := range []string{"rollbackd", "migrate"} {
		build := service(t, project(t), name).Build
		if build == nil {
			t.Fatalf("%s is not built", name)
		}
		if _, err := os.Stat(filepath.Join(build.Context, "go.mod")); err != nil {
			t.Errorf("%s: build context is not the repository's root: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(build.Context, build.Dockerfile)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOurContainersMayDoLittle(t *testing.T) {
	for _, name := range []string{"rollbackd", "migrate"} {
		s := service(t, project(t), name)
		if !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s may write its file system or gain rights", name)
		}
	}
}

func TestDaemonStopsAfterItsDrain(t *testing.T) {
	s := service(t, project(t), "rollbackd")
	if s.StopGracePeriod == nil {
		t.Fatal("no stop_grace_period")
	}
	enough(t, "compose.yaml", time.Duration(*s.StopGracePeriod), accepted(t, "rollbackd", environ(s)))
}

func TestPortsArePublishedToLoopbackOnly(t *testing.T) {
	published := 0
	for name, s := range project(t).Services {
		for _, port := range s.Ports {
			published++
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %s to %q", name, port.Published, port.HostIP)
			}
		}
	}
	if published == 0 {
		t.Error("no port is published")
	}
}

func TestDurableDataLivesInVolumes(t *testing.T) {
	p := project(t)
	for name, target := range map[string]string{"rabbitmq": "/var/lib/rabbitmq", "mysql": "/var/lib/mysql"} {
		if !slices.ContainsFunc(service(t, p, name).Volumes, func(v types.ServiceVolumeConfig) bool {
			return v.Type == types.VolumeTypeVolume && v.Target == target
		}) {
			t.Errorf("%s keeps %s in the container", name, target)
		}
	}
	if service(t, p, "rabbitmq").Hostname == "" {
		t.Error("rabbitmq has no fixed host name: its data belongs to the node's name")
	}
}
