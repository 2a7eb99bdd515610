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
)

// writeTexts makes what the program says about itself, under the name it is installed as; gzip -n without times.
func writeTexts(s source, dir string) error {
	program, man := filepath.Join(dir, "rollbackd"), filepath.Join(dir, "man")
	// The tag adds the command that writes man pages; its library is of no use to anybody else.
	if err := compile(s, "linux/"+runtime.GOARCH, program, "-tags", "man"); err != nil {
		return err
	}
	for name, command := range map[string][]string{
		"bash":         {program, "completion", "bash"},
		"zsh":          {program, "completion", "zsh"},
		"fish":         {program, "completion", "fish"},
		"changelog.gz": {"gzip", "-9nc", "CHANGELOG.md"},
	} {
		text, err := output(command[0], command[1:]...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.Mkdir(man, 0o755); err != nil {
		return err
	}
	if _, err := output("env", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", s.time.Unix()), program, "man", man); err != nil {
		return err
	}
	_, err := output("gzip", "-9nr", man)
	return err
}

// writePackages makes of a binary what deploy/package/nfpm.yaml says, for dpkg and for rpm.
func writePackages(s source, arch, binary, texts, out string) (paths []string, err error) {
	values := map[string]string{"ARCH": arch, "VERSION": s.version, "BINARY": binary, "TEXTS": texts}
	config, err := nfpm.ParseFileWithEnvMapping(filepath.Join("deploy", "package", "nfpm.yaml"),
		func(name string) string { return values[name] })
	if err != nil {
		return nil, err
	}
	for _, format := range []string{"deb", "rpm"} {
		info, err := config.Get(format)
		if err != nil {
			return nil, err
		}
		info.MTime = s.time
		packager, err := nfpm.Get(format)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(out, packager.ConventionalFileName(info))
		f, err := os.Create(path)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(packager.Package(info, f), f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}
