package sql

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

const good = "UPDATE t SET n = n + :n WHERE id = :id;"

// Each file that could end or escape the transaction, or that does not say what its writer believes, is refused where
// it goes wrong: testdata/refused.txt has the files.
func TestParseRefusesWithLineAndColumn(t *testing.T) {
	t.Parallel()
	golden.Says(t, "testdata/refused.txt", func(text string) string {
		_, err := Parse("f.sql", text)
		bad, ok := errors.AsType[*Error](err)
		require.That(t, ok, "%s: the error is %v, want one with a place", text, err)
		return bad.Error()
	})
}

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

// A comment for people needs no care as long as it is far from every directive.
func TestCommentsForPeopleHaveNoEffect(t *testing.T) {
	t.Parallel()
	for _, comment := range []string{
		"-- One row per order.", "-- Only once a day.", "-- What everybody expects.", "-- Form and function.", "--", "-- 1.",
		"-- All or nothing.", "-- Forecasts are left alone.", "-- UPDATE t SET n = 1", "-- The stock, for each of the items",
		"/* Everything that an order took\nfor each of its items */", "-- 12 for each of them", "-- Calls nobody.",
	} {
		_, err := Parse("f.sql", comment+"\n"+good+" "+comment+"\n")
		assert.OK(t, err)
	}
}

// What looks like a parameter, a comment or the end of a statement inside a string or a name is none.
func TestParseSplitsAsTheServerDoes(t *testing.T) {
	t.Parallel()
	f := require.Get(Parse("f.sql", `
-- Any comment.
SELECT 1 FROM a WHERE b = ':x; -- @y' AND c = "it""s ?"
  AND d = 'a\';' AND `+"`:e;`"+` = 5--3; -- expect 0 or 1, else done
/* another ; one */
-- for each /a~1b/c
INSERT INTO t /* inside */ VALUES (:a, :{b c}, :{/d/0}, :{}, :rollbackd_key) # at the end
; INSERT /*+ NO_MERGE(t) */ INTO u SELECT :a/2
-- expect 1 or more, else retry: some text
;
-- once
WITH x AS (SELECT 1) UPDATE t, x SET t.a = 1`))(t)
	var got []string
	for in, s := range f.all {
		line := s.verb + " | " + asWritten(s)
		if in.each {
			line = "each " + strings.Join(in.list, "→") + " " + line
		}
		if s.expect != nil {
			line += " | " + s.expect.String() + " " + string(s.expect.other) + " " + s.expect.text
		}
		got = append(got, line)
	}
	want := []string{
		`SELECT | SELECT 1 FROM a WHERE b = ':x; -- @y' AND c = "it""s ?" AND d = 'a\';' AND ` +
			"`:e;` = 5--3 | 0 or 1 done ",
		"each a/b→c INSERT | INSERT INTO t VALUES (:a, :{b c}, :{/d/0}, :{}, :rollbackd_key)",
		"each a/b→c INSERT | INSERT /*+ NO_MERGE(t) */ INTO u SELECT :a/2 | 1 or more retry some text",
		"UPDATE | WITH x AS (SELECT 1) UPDATE t, x SET t.a = 1",
	}
	assert.Is(t, strings.Join(got, "\n"), strings.Join(want, "\n"), "the statements")
}

func asWritten(s *Statement) (text string) {
	for _, p := range s.parts {
		text += p.text
	}
	return strings.Join(strings.Fields(text), " ")
}

// However a file is made, reading it ends, and what it gives can be written again.
func FuzzParse(f *testing.F) {
	f.Add("-- once\n" + good + " -- expect 1, else done\n-- for each /items\n" + good)
	f.Add("WITH x AS (SELECT ':a' \"b\" `c`) SELECT :{/a/~0}, :b /*+ h */ # c")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("f.sql", text)
		if err != nil {
			_, ok := errors.AsType[*Error](err)
			assert.That(t, ok, "an error without a place: %v", err)
			return
		}
		for _, s := range file.all {
			assert.That(t, asWritten(s) != "", "an empty statement")
		}
	})
}
