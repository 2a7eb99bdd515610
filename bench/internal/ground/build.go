package ground

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Build is one build of the product.
type Build struct {
	// Name is what was asked for: a folder with the product's source, a binary, or a revision of git. What exists as a
	// file or folder is not looked for in git.
	Name   string
	Binary string

	folder   string // of its source, if there is one
	worktree bool   // the folder is one of ours
}

// Sum is the SHA-256 of the binary.
func (b Build) Sum() string {
	sum := sha256.Sum256(must.Get(os.ReadFile(b.Binary)))
	return hex.EncodeToString(sum[:])
}

const mainFolder = "cmd/consumer"

// build makes the next of the ground's builds. A name that is relative is looked for here and in the product's folder.
//
// A binary is compiled with its own go.mod, not with this module's: other versions of libraries would be another
// product. The commit does not stand in it, so that the same code is the same binary.
func (g *Ground) build(name string) {
	b := Build{Name: name}
	here := filepath.Join(g.dir, fmt.Sprint(len(g.Builds)))
	for _, path := range []string{name, filepath.Join(g.module, name)} {
		path := must.Get(filepath.Abs(path))
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			b.Binary = path
			break
		}
		if info, err := os.Stat(filepath.Join(path, mainFolder)); err == nil && info.IsDir() {
			b.folder = path
			break
		}
	}
	if b.Binary == "" && b.folder == "" {
		commit, err := g.git("rev-parse", "--verify", "--quiet", "--end-of-options", name+"^{commit}")
		must.OK(err, fmt.Sprintf("%q is no folder with %s, no program and no revision of git", name, mainFolder))
		b.folder = here + "-source"
		must.Get(g.git("worktree", "add", "--detach", b.folder, commit))
		b.worktree = true
	}
	g.Builds = append(g.Builds, b)
	if b.Binary == "" {
		b.Binary = filepath.Join(here, "consumer")
		must.Get(Output(g.Ctx, b.folder, "go", "build", "-trimpath", "-buildvcs=false", "-o", b.Binary, "./"+mainFolder))
		g.Builds[len(g.Builds)-1] = b
	}
}

// git runs git in the product's folder, also when the run is cut short: what was made is removed.
func (g *Ground) git(args ...string) (string, error) {
	return Output(context.WithoutCancel(g.Ctx), g.module, "git", args...)
}

// Output is what a program prints that runs in a folder.
func Output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s %s: %w\n%s", name, args[0], err, failed.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
