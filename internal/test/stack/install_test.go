package stack

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestAProgramOfATreeIsFoundThroughTheTreesOwnLinks(t *testing.T) {
	// given a tree with programs, and links as Debian makes them
	tree := t.TempDir()
	for name, mode := range map[string]os.FileMode{
		"usr/bin/real-server": 0o755, "usr/bin/no-program": 0o644, "usr/lib/alternatives/server-2": 0o755,
	} {
		file := filepath.Join(tree, name)
		require.OK(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, mode)))
	}
	for link, target := range map[string]string{
		"usr/bin/absolute": "/usr/lib/alternatives/server-2", // which the machine does not have
		"usr/bin/relative": "../lib/alternatives/server-2",
		"usr/bin/nowhere":  "/usr/lib/alternatives/server-3",
		"usr/bin/loop":     "loop",
		"usr/bin/outside":  "/bin/sh", // which the tree does not have
	} {
		require.OK(t, os.Symlink(target, filepath.Join(tree, link)))
	}
	for name, want := range map[string]string{
		"real-server": "/usr/bin/real-server", "absolute": "/usr/bin/absolute", "relative": "/usr/bin/relative",
		"/usr/lib/alternatives/server-*": "/usr/lib/alternatives/server-2",
		"no-program":                     "", "nowhere": "", "loop": "", "outside": "", "sh": "",
	} {
		// when it is looked for
		found, err := findIn(tree, name)

		// then its path is the one inside the tree, and a program of the machine is none of the tree's
		switch {
		case want == "" && !errors.Is(err, errNotInstalled):
			t.Errorf("%s: found %+v, error %v, want %v", name, found, err, errNotInstalled)
		case want != "" && (err != nil || found != executable{path: want, tree: tree}):
			t.Errorf("%s: found %+v, error %v, want %s in the tree", name, found, err, want)
		}
	}
}
