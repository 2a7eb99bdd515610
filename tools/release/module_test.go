package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	gomodule "golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Given a proxy that has this commit as the newest version of CHANGELOG.md, and modules of others as they are here,
// when somebody who has nothing of the repository installs the program by its address, and builds a program of their
// own that requires the library, then both go without replace, and the installed program says its version.
func TestWhoHasNothingOfTheRepositoryInstallsTheProgramAndRequiresTheLibrary(t *testing.T) {
	dir, top := t.TempDir(), must.Get(filepath.Abs("../.."))
	t.Chdir(top)
	newest := newestVersion.FindSubmatch(must.Get(os.ReadFile("CHANGELOG.md")))
	version := "v" + string(newest[1])
	proxy := filepath.Join(dir, "proxy", home, "@v")
	must.OK(os.MkdirAll(proxy, 0o755))
	archive := must.Get(os.Create(filepath.Join(proxy, version+".zip")))
	must.OK(zip.CreateFromVCS(archive, gomodule.Version{Path: home, Version: version}, top, "HEAD", ""))
	must.OK(archive.Close())
	must.OK(os.WriteFile(filepath.Join(proxy, version+".mod"), must.Get(os.ReadFile("go.mod")), 0o644))
	must.OK(os.WriteFile(filepath.Join(proxy, version+".info"), fmt.Appendf(nil, `{"Version":%q}`, version), 0o644))
	must.OK(os.WriteFile(filepath.Join(proxy, "list"), []byte(version+"\n"), 0o644))
	here := strings.TrimSpace(must.Get(output("go", "env", "GOMODCACHE")))
	shop := filepath.Join(dir, "shop")
	must.OK(os.MkdirAll(shop, 0o755))
	must.OK(os.WriteFile(filepath.Join(shop, "go.mod"),
		fmt.Appendf(nil, "module example.com/shop\n\ngo 1.26.0\n\nrequire %s %s\n", home, version), 0o644))
	must.OK(os.WriteFile(filepath.Join(shop, "main.go"),
		must.Get(os.ReadFile("deploy/examples/library/mails/main.go")), 0o644))
	install := []string{"install", home + "/cmd/rollbackd@" + version}
	build := []string{"build", "-o", filepath.Join(dir, "mails"), "."}
	for _, args := range [][]string{install, build} {
		cmd := exec.Command("go", args...)
		cmd.Dir = shop
		cmd.Env = append(os.Environ(), "GOPROXY=file://"+dir+"/proxy,file://"+here+"/cache/download", "GOSUMDB=off",
			"GOFLAGS=-mod=mod -modcacherw -trimpath", "GOMODCACHE="+filepath.Join(dir, "modules"),
			"GOBIN="+dir, "GOWORK=off", "CGO_ENABLED=0")
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, said)
		}
	}
	if said := must.Get(output(filepath.Join(dir, "rollbackd"), "version")); !strings.Contains(said, version+" ") {
		t.Errorf("the installed program says %s, want %s", said, version)
	}
}
