// Package golden compares what is made with a file of testdata; -update writes it anew. Nothing of the product may live
// here.
package golden

import (
	"flag"
	"os"
	"strconv"
	"strings"
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

// Says holds a file against what is said of each text in it: a text is a line, and may be quoted; below it stands what
// is said, behind tabs; lines with # are remarks. -update rewrites what is said.
func Says(t testing.TB, path string, said func(text string) string) {
	t.Helper()
	var got strings.Builder
	for line := range strings.Lines(string(require.Get(os.ReadFile(path))(t))) {
		text := strings.TrimSpace(line)
		if unquoted, err := strconv.Unquote(text); err == nil {
			text = unquoted
		}
		switch line[0] {
		case '\t':
		case '#':
			got.WriteString(line)
		default:
			got.WriteString(line + "\t" + strings.ReplaceAll(said(text), "\n", "\n\t") + "\n")
		}
	}
	Is(t, path, got.String())
}
