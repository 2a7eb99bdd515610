package ground

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/program"
)

func TestABuildIsAFolderAProgramOrARevision(t *testing.T) {
	module := must.Get(program.Module(t.Context()))
	g := &Ground{Ctx: t.Context(), module: module, dir: t.TempDir()}
	script := filepath.Join(t.TempDir(), "program")
	must.OK(os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755))
	names := []string{".", module, script}
	if _, err := g.git("rev-parse", "HEAD"); err == nil {
		names = append(names, "HEAD")
	}
	for _, name := range names {
		g.build(name)
		b := g.Builds[len(g.Builds)-1]
		out, err := exec.Command(b.Binary, "version").CombinedOutput()
		if err != nil || b.Name != name || len(b.Sum()) != 64 {
			t.Errorf("%s: %+v: %v\n%s", name, b, err, out)
		}
	}
	if g.Builds[2].Binary != script {
		t.Errorf("the program is %+v", g.Builds[2])
	}
	if err := must.Catch(func() { g.build("no-such-thing") }); err == nil || !strings.Contains(err.Error(), "revision") {
		t.Errorf("what is nothing: %v", err)
	}
	must.OK(g.Stop())
	if trees, err := g.git("worktree", "list"); err == nil && strings.Contains(trees, g.dir) {
		t.Errorf("a worktree is left behind:\n%s", trees)
	}
}
