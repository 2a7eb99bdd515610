package sql

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

// A file for whoever looks holds one SELECT that names each parameter and locks nothing; any other is refused where it
// goes wrong.
func TestAQueryIsOneSelectWithItsParameters(t *testing.T) {
	t.Parallel()
	const end = " WHERE a > :after LIMIT :limit"
	for _, tc := range []struct{ text, want string }{
		{"-- all\nSELECT a FROM t" + end + ";", ""},
		{"WITH t AS (SELECT 1 AS a) SELECT a, '? :x' FROM t" + end, ""},
		{"SELECT a FROM t" + end + "; SELECT 1", ":1:48: the file must hold one SELECT"},
		{"UPDATE t SET a = 1" + end, ":1:1: the file must hold one SELECT"},
		{"WITH x AS (SELECT 1) DELETE FROM t" + end, ":1:1: the file must hold one SELECT"},
		{"-- for each /items\nSELECT a FROM t" + end, ":2:1: the file must hold one SELECT"},
		{"SELECT a FROM t" + end + "; -- expect 1, else done", ":1:1: the file must hold one SELECT"},
		{"-- allow call\nCALL p(:after, :limit)", ":2:1: the file must hold one SELECT"},
		{"SELECT a FROM t" + end + " FOR UPDATE", ":1:51: UPDATE is refused"},
		{"SELECT a FROM t" + end + " FOR SHARE", ":1:51: SHARE is refused"},
		{"SELECT a FROM t" + end + " LOCK IN SHARE MODE", ":1:47: LOCK is refused"},
		{"SELECT share FROM t" + end, ""},
		{"SELECT :other FROM t" + end, ":1:1: the SELECT must have the parameters :after, :limit"},
		{"SELECT :{/after} FROM t" + end, ":1:1: the SELECT must have the parameters :after, :limit"},
		{"SELECT :rollbackd_key FROM t" + end, ":1:1: the SELECT must have the parameters :after, :limit"},
		{"SELECT a FROM t WHERE a > :after", ":1:1: the SELECT must have the parameters :after, :limit"},
		{"SELECT a FROM", ":1:1: the SELECT must have the parameters :after, :limit"},
		{"SELECT 1 INTO OUTFILE 'a'", ":1:10: SELECT … INTO is refused"},
	} {
		path := filepath.Join(t.TempDir(), "q.sql")
		require.OK(t, os.WriteFile(path, []byte(tc.text), 0o600))
		text, places, err := LoadQuery(path, "after", "limit")
		switch {
		case tc.want != "":
			if err == nil || !strings.HasPrefix(err.Error(), path+tc.want) {
				t.Errorf("%s\n%v, want %s", tc.text, err, tc.want)
			}
		case err != nil, strings.Contains(text, ":after"), !slices.Equal(places, []string{"after", "limit"}):
			t.Errorf("%s\n%s, %q, %v", tc.text, text, places, err)
		}
	}
}
