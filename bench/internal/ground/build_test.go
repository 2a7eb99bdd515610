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
	if _, err := g.output(module, "git", "rev-parse", "HEAD"); err == nil {
		names = append(names, "HEAD")
	}
	for _, name := range names {
		g.build(name)
		b := g.Builds[len(g.Builds)-1]
		out, err := exec.Command(b.Binary, "version").CombinedOutput()
		if err != nil || len(b.Sum()) != 64 {
			t.Errorf("%s: %+v: %v\n%s", name, b, err, out)
		}
	}
	if g.Builds[2].Binary != script {
		t.Errorf("the program is %+v", g.Builds[2])
	}
	if err := must.Catch(func() { g.build("no-such-thing") }); err == nil || !strings.Contains(err.Error(), "revision") {
		t.Errorf("what is nothing: %v", err)
	}
}
