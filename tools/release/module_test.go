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
)

// Given a proxy that has this commit as the newest version of CHANGELOG.md, and modules of others as they are here,
// when somebody who has nothing of the repository installs the program by its address, and builds a program of their
// own that requires the library, then both go without replace, and the installed program says its version.
func TestWhoHasNothingOfTheRepositoryInstallsTheProgramAndRequiresTheLibrary(t *testing.T) {
	dir, top := t.TempDir(), must(filepath.Abs("../.."))(t)
	t.Chdir(top)
	newest := newestVersion.FindSubmatch(must(os.ReadFile("CHANGELOG.md"))(t))
	version := "v" + string(newest[1])
	proxy := filepath.Join(dir, "proxy", home, "@v")
	must(0, os.MkdirAll(proxy, 0o755))(t)
	archive := must(os.Create(filepath.Join(proxy, version+".zip")))(t)
	must(0, zip.CreateFromVCS(archive, gomodule.Version{Path: home, Version: version}, top, "HEAD", ""))(t)
	must(0, archive.Close())(t)
	must(0, os.WriteFile(filepath.Join(proxy, version+".mod"), must(os.ReadFile("go.mod"))(t), 0o644))(t)
	must(0, os.WriteFile(filepath.Join(proxy, version+".info"), fmt.Appendf(nil, `{"Version":%q}`, version), 0o644))(t)
	must(0, os.WriteFile(filepath.Join(proxy, "list"), []byte(version+"\n"), 0o644))(t)
	here := strings.TrimSpace(must(output("go", "env", "GOMODCACHE"))(t))
	shop := filepath.Join(dir, "shop")
	must(0, os.MkdirAll(shop, 0o755))(t)
	must(0, os.WriteFile(filepath.Join(shop, "go.mod"),
		fmt.Appendf(nil, "module example.com/shop\n\ngo 1.26.0\n\nrequire %s %s\n", home, version), 0o644))(t)
	must(0, os.WriteFile(filepath.Join(shop, "main.go"),
		must(os.ReadFile("deploy/examples/library/mails/main.go"))(t), 0o644))(t)
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
	if said := must(output(filepath.Join(dir, "rollbackd"), "version"))(t); !strings.Contains(said, version+" ") {
		t.Errorf("the installed program says %s, want %s", said, version)
	}
}
