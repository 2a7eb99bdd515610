package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the packagers that are asked for by their names
	_ "github.com/goreleaser/nfpm/v2/rpm"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// writeTexts makes what the program says about itself, under the name it is installed as; gzip -n without times.
func writeTexts(s source, dir string) {
	program, man := filepath.Join(dir, "rollbackd"), filepath.Join(dir, "man")
	// The tag adds the command that writes man pages; its library is of no use to anybody else.
	compile(s, "linux/"+runtime.GOARCH, program, "-tags", "man")
	for name, command := range map[string][]string{
		"bash":         {program, "completion", "bash"},
		"zsh":          {program, "completion", "zsh"},
		"fish":         {program, "completion", "fish"},
		"changelog.gz": {"gzip", "-9nc", "CHANGELOG.md"},
	} {
		text := must.Get(output(command[0], command[1:]...))
		must.OK(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	must.OK(os.Mkdir(man, 0o755))
	must.Get(output("env", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", s.time.Unix()), program, "man", man))
	must.Get(output("gzip", "-9nr", man))
}

// writePackages makes of a binary what deploy/package/nfpm.yaml says, for dpkg and for rpm.
func writePackages(s source, arch, binary, texts, out string) (paths []string) {
	values := map[string]string{"ARCH": arch, "VERSION": s.version, "BINARY": binary, "TEXTS": texts}
	config := must.Get(nfpm.ParseFileWithEnvMapping(filepath.Join("deploy", "package", "nfpm.yaml"),
		func(name string) string { return values[name] }))
	for _, format := range []string{"deb", "rpm"} {
		info := must.Get(config.Get(format))
		info.MTime = s.time
		packager := must.Get(nfpm.Get(format))
		path := filepath.Join(out, packager.ConventionalFileName(info))
		f := must.Get(os.Create(path))
		must.OK(errors.Join(packager.Package(info, f), f.Close()))
		paths = append(paths, path)
	}
	return paths
}
