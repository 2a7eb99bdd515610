package composetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
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
