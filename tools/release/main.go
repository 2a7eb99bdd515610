package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	root := flag.String("root", filepath.Join("..", ".."), "the repository")
	out := flag.String("out", filepath.Join("..", "..", "dist"), "where it goes; older files are replaced")
	version := flag.String("version", "", "as 0.1.0; by default that of the tag, or of CHANGELOG.md with a suffix")
	archs := flag.String("arch", "amd64,arm64", "for which processors")
	notices := flag.Bool("notices", false, "only write THIRD_PARTY_NOTICES")
	flag.Parse()
	if err := run(ctx, *root, *out, *version, strings.Split(*archs, ","), *notices); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root, out, version string, archs []string, noticesOnly bool) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	modules, err := linked(ctx, root)
	if err != nil {
		return err
	}
	if noticesOnly {
		return os.WriteFile(filepath.Join(root, noticesName), []byte(notices(modules)), 0o644)
	}
	s, err := look(ctx, root, version)
	if err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var made []string
	for _, arch := range archs {
		binary := filepath.Join(out, fmt.Sprintf("rollbackd_%s_linux_%s", s.version, arch))
		if err := compile(ctx, s, arch, binary); err != nil {
			return err
		}
		sbom, err := writeSBOM(s, arch, binary, modules)
		if err != nil {
			return err
		}
		made = append(made, binary, sbom)
	}
	texts, err := writeTexts(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(texts)) }()
	for _, arch := range archs {
		deb, err := writeDeb(s, arch, filepath.Join(out, fmt.Sprintf("rollbackd_%s_linux_%s", s.version, arch)), texts, out)
		if err != nil {
			return err
		}
		made = append(made, deb)
	}
	return writeSums(out, made)
}

// source is what is built.
type source struct {
	root    string
	version string // without v
	time    time.Time
}

// look finds out what the repository's checkout is: the commit's time stands in everything that is made, so that making
// it again gives the same bytes.
func look(ctx context.Context, root, version string) (source, error) {
	stamp, err := git(ctx, root, "log", "-1", "--format=%ct")
	if err != nil {
		return source{}, err
	}
	var seconds int64
	if _, err := fmt.Sscan(stamp, &seconds); err != nil {
		return source{}, fmt.Errorf("the time of the commit: %w", err)
	}
	s := source{root: root, version: strings.TrimPrefix(version, "v"), time: time.Unix(seconds, 0).UTC()}
	if s.version != "" {
		return s, nil
	}
	if tag, err := git(ctx, root, "describe", "--tags", "--exact-match", "--match", "v[0-9]*"); err == nil {
		s.version = strings.TrimPrefix(tag, "v")
		return s, nil
	}
	changelog, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return source{}, err
	}
	revision, err := git(ctx, root, "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return source{}, err
	}
	// Without a tag it is not the release: dpkg and semantic versions sort it before that.
	s.version = newest(string(changelog)) + "-dev." + "g" + revision
	return s, nil
}

// newest is the newest version that the changelog has a section for; 0.0.0 when there is none.
func newest(changelog string) string {
	for line := range strings.Lines(changelog) {
		if rest, ok := strings.CutPrefix(line, "## ["); ok {
			if version, _, ok := strings.Cut(rest, "]"); ok && version != "Unreleased" {
				return version
			}
		}
	}
	return "0.0.0"
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// compile makes the static binary. Nothing of this machine is in it: no path, no C library, no linker's build id.
func compile(ctx context.Context, s source, arch, path string, more ...string) error {
	args := append([]string{"build", "-trimpath", "-buildvcs=true",
		"-ldflags", "-s -w -buildid= -X github.com/rollbackd/rollbackd/internal/cli.version=v" + s.version}, more...)
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", path, "./cmd/rollbackd")...)
	cmd.Dir = s.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=", "GOAMD64=", "GOARM64=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build for %s: %w\n%s", arch, err, out)
	}
	return nil
}
