package ground

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestABuildIsAFolderAProgramOrARevision(t *testing.T) {
	module, err := findModule(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := &Ground{module: module, dir: t.TempDir()}
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	names := []string{".", module, program}
	if _, err := g.git(t.Context(), "rev-parse", "HEAD"); err == nil {
		names = append(names, "HEAD")
	}
	for _, name := range names {
		b, err := g.build(t.Context(), name)
		g.Builds = append(g.Builds, b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if out, err := exec.Command(b.Binary, "version").CombinedOutput(); err != nil || b.Name != name {
			t.Errorf("%s: %+v: %v\n%s", name, b, err, out)
		}
		if sum, err := b.Sum(); err != nil || len(sum) != 64 {
			t.Errorf("%s: %q, %v", name, sum, err)
		}
	}
	if g.Builds[2].Binary != program {
		t.Errorf("the program is %+v", g.Builds[2])
	}
	if _, err := g.build(t.Context(), "no-such-thing"); err == nil || !strings.Contains(err.Error(), "revision") {
		t.Errorf("what is nothing: %v", err)
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	if trees, err := g.git(t.Context(), "worktree", "list"); err == nil && strings.Contains(trees, g.dir) {
		t.Errorf("a worktree is left behind:\n%s", trees)
	}
}
