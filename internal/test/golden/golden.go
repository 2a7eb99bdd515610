// Package golden compares what is made with a file of testdata; -update writes it anew. Nothing of the product may live
// here.
package golden

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Update reports whether files are to be written anew.
func Update() bool { return *update }

// Is fails the test unless the file holds this.
func Is(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		require.OK(t, os.WriteFile(path, []byte(got), 0o600))
	}
	if diff := cmp.Diff(string(require.Get(os.ReadFile(path))(t)), got); diff != "" {
		t.Errorf("%s (-want +got); -update rewrites it:\n%s", path, diff)
	}
}
