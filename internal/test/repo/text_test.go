package repo

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// top is the folder of the module.
var top = sync.OnceValue(func() string {
	out, _ := exec.Command("go", "env", "GOMOD").Output() // without it nothing is found, which is an error everywhere
	return filepath.Dir(strings.TrimSpace(string(out)))
})

func root(t *testing.T) string { t.Helper(); return top() }

// eachMatch finds an expression in the Go files that are no tests.
func eachMatch(t *testing.T, expression string, see func(file, match string)) {
	t.Helper()
	r, seen := regexp.MustCompile(expression), 0
	for _, name := range files(t, ".go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, m := range r.FindAllStringSubmatch(read(t, name), -1) {
			seen++
			see(name, m[1])
		}
	}
	assert.That(t, seen != 0, "nothing matches %s: does this test still look at the right thing?", expression)
}

func TestEachHeaderIsDeclaredOnce(t *testing.T) {
	where := map[string]string{}
	eachMatch(t, `"(x-rollbackd-[a-z0-9-]*)"`, func(file, header string) {
		before := where[header]
		assert.That(t, before == "", "header %q is written in %s and in %s, want once", header, before, file)
		where[header] = file
		// The connection writes its mark before any other part of the program sees the message.
		assert.That(t, strings.HasPrefix(file, "internal/wire/") || file == "internal/rabbit/unreadable.go",
			"header %q is declared in %s, want in internal/wire, which knows all of them", header, file)
	})
}

// Every session of the product has the settings of internal/mysqldb: who opened one by another way would have the
// server's, and a silent one would keep its locks for hours.
func TestOneFolderOpensMySQL(t *testing.T) {
	allowed := regexp.MustCompile(`^(internal/(test|cmd|mysqldb)|deploy|bench)/`)
	eachMatch(t, `\b((?:sql|stdsql|gorm)\.Open|mysql\.NewConnector)\(`, func(file, door string) {
		assert.That(t, allowed.MatchString(file), "%s has %s: use mysqldb.Open, or its connectors", file, door)
	})
}

// machinePath finds paths that exist on one machine only: homes, and the folders in which services that build and test
// put their clones.
var machinePath = regexp.MustCompile(
	`(?:^|[^\w.~/$})-])` +
		`((?:/(?:home|Users|root|builds|workspaces?|work|__w|github/workspace|var/jenkins\w*)/|[A-Z]:\\Users\\)` +
		`[\w.-]+[\w./\\-]*)`)

// notOfAMachine are matches which mean a place inside a container image.
var notOfAMachine = []string{"/root/.cache/go-build"}

// A page or a transcript with the marks of a conflict is no text that anything else would refuse.
func TestNoFileNamesAPathOfOneMachineOrHasTheMarksOfAConflict(t *testing.T) {
	seen := 0
	for _, name := range allFiles(t) {
		text := []byte(read(t, name))
		if bytes.IndexByte(text[:min(len(text), 8000)], 0) >= 0 {
			continue // a binary
		}
		seen++
		for i, line := range bytes.Split(text, []byte("\n")) {
			at := fmt.Sprintf("%s:%d", name, i+1)
			if !bytes.ContainsAny(line, `/\<>`) {
				continue // there is no more to find
			}
			for _, match := range machinePath.FindAllSubmatch(line, -1) {
				found := string(match[1])
				assert.That(t, slices.Contains(notOfAMachine, found), "%s names %s, which exists on one machine only", at, found)
			}
			assert.That(t, !bytes.HasPrefix(line, []byte("<<<<<<< ")) && !bytes.HasPrefix(line, []byte(">>>>>>> ")),
				"%s has a mark of a conflict: %s", at, line)
		}
	}
	assert.That(t, seen >= 100, "%d files were read: is %s the repository?", seen, root(t))
}
