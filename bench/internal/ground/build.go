package ground

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
func (b Build) Sum() (string, error) {
	f, err := os.Open(b.Binary)
	if err != nil {
		return "", fmt.Errorf("read the build %s: %w", b.Name, err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read the build %s: %w", b.Name, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

const mainFolder = "cmd/consumer"

// build makes the next of the ground's builds. A name that is relative is looked for here and in the product's folder.
func (g *Ground) build(ctx context.Context, name string) (b Build, err error) {
	b.Name = name
	for _, path := range []string{name, filepath.Join(g.module, name)} {
		path, err := filepath.Abs(path)
		if err != nil {
			return b, fmt.Errorf("find the build %s: %w", name, err)
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			b.Binary = path
			return b, nil
		}
		if info, err := os.Stat(filepath.Join(path, mainFolder)); err == nil && info.IsDir() {
			b.folder = path
			break
		}
	}
	here := filepath.Join(g.dir, fmt.Sprint(len(g.Builds)))
	if b.folder == "" {
		if b.folder, b.worktree, err = g.checkOut(ctx, name, here+"-source"); err != nil {
			return b, err
		}
	}
	b.Binary = filepath.Join(here, "consumer")
	return b, compile(ctx, b.folder, b.Binary)
}

// checkOut makes a worktree of a revision.
func (g *Ground) checkOut(ctx context.Context, revision, into string) (folder string, made bool, err error) {
	commit, err := g.git(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return "", false, fmt.Errorf("%q is no folder with %s, no program and no revision of git: %w", revision, mainFolder,
			err)
	}
	_, err = g.git(ctx, "worktree", "add", "--detach", into, commit)
	return into, err == nil, err
}

func (g *Ground) git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", g.module}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w\n%s", args[0], err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

func (g *Ground) removeWorktree(b Build) error {
	if !b.worktree {
		return nil
	}
	_, err := g.git(context.Background(), "worktree", "remove", "--force", b.folder)
	return err
}

// findModule is the folder of the product.
func findModule(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/rollbackd/rollbackd").Output()
	if err != nil {
		return "", fmt.Errorf("find the product's module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// compile makes the binary with its own go.mod, not with this module's: other versions of libraries would be another
// product. The commit does not stand in it, so that the same code is the same binary.
func compile(ctx context.Context, folder, binary string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "./"+mainFolder)
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the product in %s: %w\n%s", folder, err, out)
	}
	return nil
}
