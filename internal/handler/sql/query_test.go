package sql

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// A file for whoever looks holds one SELECT that names each parameter and locks nothing; any other is refused where it
// goes wrong.
func TestAQueryIsOneSelectWithItsParameters(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "q.sql")
	golden.Says(t, "testdata/queries.txt", func(text string) string {
		require.OK(t, os.WriteFile(path, []byte(text), 0o600))
		query, places, err := LoadQuery(path, "after", "limit")
		if err != nil {
			return strings.TrimPrefix(err.Error(), path+":")
		}
		return fmt.Sprintf("%q %q", query, places)
	})
}
