package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	out := flag.String("out", "dist", "where it goes, seen from the repository's root; older files are replaced")
	version := flag.String("version", "", "as 0.1.0; by default that of the tag, or of CHANGELOG.md with a suffix")
	archs := flag.String("arch", "amd64,arm64", "for which processors")
	onlyNotices := flag.Bool("notices", false, "only write THIRD_PARTY_NOTICES")
	flag.Parse()
	err := os.Chdir(filepath.Join("..", ".."))
	switch {
	case err != nil:
	case *onlyNotices:
		err = writeNotices("THIRD_PARTY_NOTICES")
	default:
		err = release(*out, *version, strings.Split(*archs, ","))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// release makes all that is published of the repository that it is called in.
func release(out, version string, archs []string) (err error) {
	s, err := look(version)
	if err != nil {
		return err
	}
	modules, err := linked()
	if err != nil {
		return err
	}
	texts, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(texts)) }()
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := writeTexts(s, texts); err != nil {
		return err
	}
	var made []string
	for _, arch := range archs {
		binary := filepath.Join(out, fmt.Sprintf("rollbackd_%s_linux_%s", s.version, arch))
		parts := binary + ".cdx.json"
		if err := compile(s, arch, binary); err != nil {
			return err
		}
		if err := writeParts(s, binary, parts, modules); err != nil {
			return err
		}
		packages, err := writePackages(s, arch, binary, texts, out)
		if err != nil {
			return err
		}
		made = append(append(made, binary, parts), packages...)
	}
	return writeSums(out, made)
}

// source is what is built.
type source struct {
	version string    // without v
	time    time.Time // the commit's: it stands in all that is made, so that making it again gives the same bytes
}

var newestVersion = regexp.MustCompile(`(?m)^## \[(\d.*?)\]`)

func look(version string) (source, error) {
	commit, err := output("git", "log", "-1", "--abbrev=12", "--format=%ct %h")
	if err != nil {
		return source{}, err
	}
	var seconds int64
	var revision string
	if _, err := fmt.Sscan(commit, &seconds, &revision); err != nil {
		return source{}, fmt.Errorf("the time of the commit: %w", err)
	}
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return source{}, err
	}
	newest := newestVersion.FindSubmatch(changelog)
	if newest == nil {
		return source{}, errors.New("CHANGELOG.md has no version")
	}
	// Without a tag it is not the release: dpkg and semantic versions sort it before that.
	unreleased := fmt.Sprintf("%s-dev.g%s", newest[1], revision)
	tag, _ := output("git", "describe", "--tags", "--exact-match", "--match", "v[0-9]*") // fails where there is none
	version = strings.TrimPrefix(cmp.Or(version, strings.TrimSpace(tag), unreleased), "v")
	return source{version, time.Unix(seconds, 0).UTC()}, nil
}

func output(name string, args ...string) (string, error) {
	var stderr strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd.Args, err, stderr.String())
	}
	return string(out), nil
}

// goTool runs go for a processor, whatever this machine's settings for it are.
func goTool(arch string, args ...string) (string, error) {
	return output("env", append([]string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS=", "GOAMD64=",
		"GOARM64=", "go"}, args...)...)
}

// compile makes the static binary. Nothing of this machine is in it: no path, no C library, no linker's build id.
func compile(s source, arch, path string, more ...string) error {
	args := append([]string{"build", "-trimpath", "-buildvcs=true",
		"-ldflags", "-s -w -buildid= -X github.com/rollbackd/rollbackd/internal/cli.version=v" + s.version}, more...)
	_, err := goTool(arch, append(args, "-o", path, "./cmd/rollbackd")...)
	return err
}

// writeSums writes SHA256SUMS, as `sha256sum -c` reads it.
func writeSums(out string, paths []string) error {
	var sums strings.Builder
	for _, path := range slices.Sorted(slices.Values(paths)) {
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(body), filepath.Base(path))
	}
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}
