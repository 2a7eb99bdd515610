package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// runCLI runs the program in process, called as "consumer", and returns what a shell would see.
func runCLI(t *testing.T, environ []string, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = run(t.Context(), append([]string{"/usr/bin/consumer"}, args...), environ, strings.NewReader(stdin), &out,
		&errOut)
	return out.String(), errOut.String(), code
}

// TestGolden runs every testdata/*.txtar. A file holds a comment, then these parts: args (one a line), env (NAME=value
// lines), stdin, files/NAME (written to a directory that $WORK names in args and env), and what is expected: stdout,
// stderr, exit. Missing parts are empty. -update rewrites the expected parts; the diff is to be reviewed.
func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("testdata has no golden files: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { runGolden(t, path) })
	}
}

func runGolden(t *testing.T, path string) {
	archive := require.Get(txtar.ParseFile(path))(t)
	work := t.TempDir()
	parts := make(map[string]string)
	var input []txtar.File
	for _, f := range archive.Files {
		parts[f.Name] = string(f.Data)
		if name, ok := strings.CutPrefix(f.Name, "files/"); ok {
			require.OK(t, os.WriteFile(filepath.Join(work, filepath.Base(name)), f.Data, 0o600))
		}
		if f.Name != "stdout" && f.Name != "stderr" && f.Name != "exit" {
			input = append(input, f)
		}
	}
	list := func(part string) []string {
		text := strings.TrimSuffix(strings.ReplaceAll(parts[part], "$WORK", work), "\n")
		if text == "" {
			return nil
		}
		return strings.Split(text, "\n")
	}
	stdout, stderr, code := runCLI(t, list("env"), parts["stdin"], list("args")...)
	got := map[string]string{
		"stdout": normalForm(stdout, work), "stderr": normalForm(stderr, work), "exit": strconv.Itoa(code) + "\n",
	}
	if golden.Update() {
		archive.Files = input
		for _, name := range []string{"stdout", "stderr", "exit"} {
			if got[name] != "" {
				archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(got[name])})
			}
		}
		require.OK(t, os.WriteFile(path, txtar.Format(archive), 0o600))
		return
	}
	for name := range got {
		if diff := cmp.Diff(parts[name], got[name]); diff != "" {
			t.Errorf("%s (-want +got); -update rewrites %s:\n%s", name, path, diff)
		}
	}
}

// spaces are the ones of an aligned table: their number follows the width of volatile values.
var spaces = regexp.MustCompile(`(GOVERSION|PLATFORM|\bGO\b) +`)

// normalForm replaces what differs from machine to machine.
func normalForm(s, work string) string {
	s = strings.NewReplacer(work, "$WORK", runtime.Version(), "GOVERSION", runtime.GOOS+"/"+runtime.GOARCH,
		"PLATFORM").Replace(s)
	return spaces.ReplaceAllString(s, "$1  ")
}
