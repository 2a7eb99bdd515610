package stack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// errNotInstalled says that a server's program is not on this machine; no other port will change that.
var errNotInstalled = errors.New("not installed: run scripts/install-servers.sh")

// searchPath is where programs are looked for: servers live in the sbin folders, which a normal user's PATH often
// lacks.
func searchPath() string {
	return os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
}

// findProgram returns the first of names that is an executable file: a name with a slash is a pattern for a path,
// another is looked for in the search path.
func findProgram(names ...string) (string, error) {
	for _, name := range names {
		var candidates []string
		if filepath.Base(name) != name {
			candidates, _ = filepath.Glob(name) // the only error is a malformed pattern, and ours are constants
		} else {
			for _, dir := range filepath.SplitList(searchPath()) {
				candidates = append(candidates, filepath.Join(dir, name))
			}
		}
		for _, path := range candidates {
			if found, err := exec.LookPath(path); err == nil {
				return found, nil
			}
		}
	}
	return "", fmt.Errorf("find %s: %w", names[0], errNotInstalled)
}

// environment is what a server gets: nothing of the caller's that could change its behaviour.
func environment(home string, more ...string) []string {
	return append([]string{"PATH=" + searchPath(), "HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8"}, more...)
}
