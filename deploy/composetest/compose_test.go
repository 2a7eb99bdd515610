package composetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// program is the path of the binary built for this run; TestMain writes it before any test.
var program string

// TestMain builds the program. It is asked from outside and not imported: so its libraries stay out of this module.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "composetest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = filepath.Join(dir, "rollbackd")
	build := exec.Command("go", "build", "-o", program, "./cmd/rollbackd")
	build.Dir, build.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
	code := 1
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, output)
	} else {
		code = m.Run()
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// must is a value that there is no error with.
func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// accepted fails the test unless the program takes env as its configuration without a warning. It returns the settings
// in effect, secrets masked.
func accepted(t *testing.T, what string, env []string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "config", "-o", "json")
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%s: the configuration is refused or doubted: %v\n%s", what, err, stderr.String())
	}
	var list []struct{ Name, Value string }
	must(0, json.Unmarshal(stdout.Bytes(), &list))(t)
	settings := make(map[string]string)
	for _, s := range list {
		settings[s.Name] = s.Value
	}
	return settings
}

// enough fails the test unless a stop that waits for grace lets the drain of settings end.
func enough(t *testing.T, what string, grace time.Duration, settings map[string]string) {
	t.Helper()
	drain := must(time.ParseDuration(settings["ROLLBACKD_DRAIN_TIMEOUT"]))(t)
	if grace < drain+5*time.Second {
		t.Errorf("%s waits %v for a stop, want at least 5s more than the drain's %v", what, grace, drain)
	}
}

// profiles are one for each handler; ours are the containers of the program in them.
var (
	profiles = []string{"stock", "sql", "http"}
	daemons  = map[string]string{"stock": "rollbackd", "sql": "rollbackd-sql", "http": "rollbackd-http"}
	ours     = []string{"rollbackd", "migrate", "rollbackd-sql", "migrate-sql", "rollbackd-http", "migrate-http"}
)

// project loads compose.yaml with its schema, interpolation and consistency checks, and no variables but those given.
func project(t *testing.T, env ...string) *types.Project {
	t.Helper()
	options := must(cli.NewProjectOptions([]string{"../compose.yaml"}, cli.WithEnv(env), cli.WithProfiles(profiles)))(t)
	return must(options.LoadProject(context.WithoutCancel(t.Context())))(t)
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

// Each container of ours has settings that the program accepts, with the servers and logins that the project makes, and
// the time that its drain may take.
func TestContainersGetAGoodConfiguration(t *testing.T) {
	for _, env := range [][]string{nil, {"RABBITMQ_PASSWORD=abc123", "MYSQL_PASSWORD=def456",
		"ADMIN_TOKEN=a-long-random-word"}} {
		p := project(t, env...)
		rabbit, mysql := service(t, p, "rabbitmq").Environment, service(t, p, "mysql").Environment
		if len(env) > 0 && (*rabbit["RABBITMQ_DEFAULT_PASS"] != "abc123" || *mysql["MYSQL_PASSWORD"] != "def456") {
			t.Error("the servers do not have the passwords of the environment")
		}
		for _, name := range ours {
			s := service(t, p, name)
			settings := accepted(t, name, environ(s))
			if handler := settings["ROLLBACKD_HANDLER"]; !slices.Equal(s.Profiles, []string{handler}) {
				t.Errorf("%s has the handler %s, and the profiles %v", name, handler, s.Profiles)
			}
			for variable, part := range map[string]string{
				"ROLLBACKD_AMQP_URL": *rabbit["RABBITMQ_DEFAULT_USER"] + ":" + *rabbit["RABBITMQ_DEFAULT_PASS"] +
					"@rabbitmq:5672/",
				"ROLLBACKD_MYSQL_DSN": *mysql["MYSQL_USER"] + ":" + *mysql["MYSQL_PASSWORD"] + "@tcp(mysql:3306)/" +
					*mysql["MYSQL_DATABASE"],
				"ROLLBACKD_REDIS_URL": "redis://redis:6379/",
			} {
				if value := s.Environment[variable]; value == nil || !strings.Contains(*value, part) {
					t.Errorf("%s of %s does not have %s", variable, name, part)
				}
			}
			if strings.HasPrefix(name, "rollbackd") {
				if s.StopGracePeriod == nil {
					t.Fatalf("%s has no stop_grace_period", name)
				}
				enough(t, name, time.Duration(*s.StopGracePeriod), settings)
			}
		}
	}
}

func TestDaemonStartsAfterItsServersAndTheMigration(t *testing.T) {
	p := project(t)
	const healthy, done = types.ServiceConditionHealthy, types.ServiceConditionCompletedSuccessfully
	wanted := map[string]map[string]string{"tables-sql": {"mysql": healthy}}
	for profile, name := range daemons {
		migrate := "migrate" + strings.TrimPrefix(name, "rollbackd")
		wanted[migrate] = map[string]string{"rabbitmq": healthy, "mysql": healthy}
		wanted[name] = map[string]string{"rabbitmq": healthy, "mysql": healthy, "redis": healthy, migrate: done}
		if profile == "sql" {
			wanted[name]["tables-sql"] = done
		}
	}
	for name, want := range wanted {
		dependencies := service(t, p, name).DependsOn
		for other, condition := range want {
			if got := dependencies[other].Condition; got != condition {
				t.Errorf("%s waits for %s until %q, want %q", name, other, got, condition)
			}
			if condition == healthy && service(t, p, other).HealthCheck == nil {
				t.Errorf("%s has no health check, so %s would wait for ever", other, name)
			}
		}
	}
}

// The program's containers are built from the repository and may do little.
func TestOurContainersAreBuiltHereAndMayDoLittle(t *testing.T) {
	p := project(t)
	for _, name := range ours {
		s := service(t, p, name)
		if s.Build == nil {
			t.Fatalf("%s is not built", name)
		}
		for _, file := range []string{"go.mod", s.Build.Dockerfile} {
			must(os.Stat(filepath.Join(s.Build.Context, file)))(t)
		}
		if !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s may write its file system or gain rights", name)
		}
	}
}

// Given the three handlers, then each has a profile with one daemon, the servers have none, and the daemons of two
// profiles cannot run beside each other: they would take each other's messages. Ports are published to the loopback
// address alone, and the files that containers see of this repository are there, and read-only.
func TestEachHandlerHasAProfileOfItsOwn(t *testing.T) {
	p := project(t)
	published, mounted := 0, 0
	for name, s := range p.Services {
		server := slices.Contains([]string{"rabbitmq", "mysql", "redis"}, name)
		if server != (len(s.Profiles) == 0) || !server && !slices.Contains(profiles, s.Profiles[0]) || len(s.Profiles) > 1 {
			t.Errorf("%s has the profiles %v", name, s.Profiles)
		}
		for _, port := range s.Ports {
			published++
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %s to %q", name, port.Published, port.HostIP)
			}
		}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				mounted++
				if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly {
					t.Errorf("%s mounts %s, read-only %v: %v", name, v.Source, v.ReadOnly, err)
				}
			}
		}
	}
	if published == 0 || mounted < 4 {
		t.Errorf("%d ports are published, %d files are mounted", published, mounted)
	}
	for profile, name := range daemons {
		s := service(t, p, name)
		if !slices.Equal(s.Profiles, []string{profile}) || len(s.Ports) != 1 || s.Ports[0].Published != "8080" {
			t.Errorf("%s has the profiles %v and the ports %v, want %s and 8080", name, s.Profiles, s.Ports, profile)
		}
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

// Given the service that handler http calls, then the daemon's target is its address.
func TestTheServiceListensWhereItIsCalled(t *testing.T) {
	p := project(t)
	target := service(t, p, "rollbackd-http").Environment["ROLLBACKD_HTTP_TARGET"]
	_, port, _ := strings.Cut(*service(t, p, "stock-service").Environment["SHOP_ADDR"], ":")
	if want := "http://stock-service:" + port + "/rollbacks"; target == nil || *target != want {
		t.Errorf("the target is %v, want %s", target, want)
	}
}

var digest = regexp.MustCompile(`^\S+:[\w.-]+@sha256:[0-9a-f]{64}$`)

// Given images that others make, then each is named by its tag, for people, and by its digest, for machines; and one
// image has one digest wherever it is used.
func TestForeignImagesArePinned(t *testing.T) {
	used := map[string]string{}
	for name, s := range project(t).Services {
		if s.Build != nil {
			continue
		}
		if !digest.MatchString(s.Image) {
			t.Errorf("%s uses %s, want name:tag@digest", name, s.Image)
			continue
		}
		used[s.Image[:strings.Index(s.Image, "@")]] = s.Image
	}
	dockerfile := string(must(os.ReadFile("../Dockerfile"))(t))
	from := regexp.MustCompile(`(?m)^FROM (?:--platform=\S+ )?(\S+)`).FindAllStringSubmatch(dockerfile, -1)
	if len(from) != 2 || !digest.MatchString(from[0][1]) || from[1][1] != "scratch" {
		t.Fatalf("the Dockerfile builds from %v, want a pinned image and scratch", from)
	}
	if image := from[0][1]; used[image[:strings.Index(image, "@")]] != image {
		t.Errorf("the Dockerfile builds with %s, compose.yaml uses %v", image, used)
	}
}

// Given the daemons, then Docker asks each with its own binary, which is all that its image has.
func TestDaemonsAreAskedByTheirOwnBinary(t *testing.T) {
	p := project(t)
	for _, name := range daemons {
		s := service(t, p, name)
		if s.HealthCheck == nil ||
			!slices.Equal(s.HealthCheck.Test, []string{"CMD", "/usr/bin/rollbackd", "probe", "--ready"}) {
			t.Errorf("%s is asked by %v", name, s.HealthCheck)
			continue
		}
		ask := exec.CommandContext(t.Context(), program, s.HealthCheck.Test[2:]...)
		ask.Env = append(environ(s), "ROLLBACKD_HTTP_ADDR=127.0.0.1:1")
		out, err := ask.CombinedOutput()
		if code := ask.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), "no daemon answers") {
			t.Errorf("%v without a daemon: exit %d, %v, %s", ask.Args, code, err, out)
		}
	}
}
