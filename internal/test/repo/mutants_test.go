package repo

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

// A patch that no longer applies is a guard that nobody tests: whoever changes what it takes away renews it.
func TestEachMutantStillApplies(t *testing.T) {
	patches, err := filepath.Glob(filepath.Join(root(t), "scripts/mutants/*.patch"))
	require.That(t, err == nil && len(patches) >= 10, "%d patches in scripts/mutants: %v", len(patches), err)
	for _, patch := range patches {
		apply := exec.CommandContext(t.Context(), "git", "apply", "--check", patch)
		apply.Dir = root(t)
		if said, err := apply.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", filepath.Base(patch), err, said)
		}
	}
}
