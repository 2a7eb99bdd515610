package repo

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the folder of the module.
func root(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatalf("go env GOMOD: %v", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

func TestEachHeaderIsDeclaredOnce(t *testing.T) {
	header := regexp.MustCompile(`^x-rollbackd-[a-z0-9-]*$`)
	where := map[string][]string{}
	for _, p := range packages(t) {
		for _, f := range parse(t, token.NewFileSet(), p) {
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil && header.MatchString(text) {
						where[text] = append(where[text], f.path)
					}
				}
				return true
			})
		}
	}
	for text, paths := range where {
		if len(paths) != 1 {
			t.Errorf("header %q is written in %v, want once, in internal/wire", text, paths)
		} else if paths[0] == "internal/rabbit/unreadable.go" {
			continue // the connection writes it, before any other part of the program sees the message
		} else if !strings.HasPrefix(paths[0], "internal/wire/") {
			t.Errorf("header %q is declared in %s, want in internal/wire, which knows all of them", text, paths[0])
		}
	}
	if len(where) == 0 {
		t.Error("no header was found: does this test still look at the right thing?")
	}
}

// machinePath finds paths that exist on one machine only: homes, and the folders in which services that build and test
// put their clones.
var machinePath = regexp.MustCompile(
	`(?:^|[^\w.~/$})-])` +
		`((?:/(?:home|Users|root|builds|workspaces?|work|__w|github/workspace|var/jenkins\w*)/|[A-Z]:\\Users\\)` +
		`[\w.-]+[\w./\\-]*)`)

// notOfAMachine are matches which mean a place inside a container image.
var notOfAMachine = []string{"/root/.cache/go-build"}

// Every session of the product has the settings of internal/mysqldb: who opened one by another way would have the
// server's, and a silent one would keep its locks for hours.
func TestOneFolderOpensMySQL(t *testing.T) {
	doors := []string{"sql.Open", "stdsql.Open", "mysql.NewConnector", "gorm.Open"}
	rig := regexp.MustCompile(`^(internal/(test|cmd)|deploy|bench)/`)
	found := 0
	for _, p := range packages(t) {
		for _, f := range parse(t, token.NewFileSet(), p) {
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					of, _ := s.X.(*ast.Ident) // nil: what the selector is of is no package
					switch {
					case of == nil || !slices.Contains(doors, of.Name+"."+s.Sel.Name) || rig.MatchString(f.path):
					case strings.HasPrefix(f.path, "internal/mysqldb/"):
						found++
					default:
						t.Errorf("%s has %s.%s: use mysqldb.Open, or its connectors", f.path, of.Name, s.Sel.Name)
					}
				}
				return true
			})
		}
	}
	if found == 0 {
		t.Error("internal/mysqldb opens nothing: does this test still look at the right thing?")
	}
}

func TestNoFileNamesAPathOfOneMachine(t *testing.T) {
	eachLine(t, func(at string, line []byte) {
		for _, match := range machinePath.FindAllSubmatch(line, -1) {
			if found := string(match[1]); !slices.Contains(notOfAMachine, found) {
				t.Errorf("%s names %s, which exists on one machine only", at, found)
			}
		}
	})
}

// A page or a transcript with the marks of a conflict is no text that anything else would refuse.
func TestNoFileHasTheMarksOfAConflict(t *testing.T) {
	eachLine(t, func(at string, line []byte) {
		if bytes.HasPrefix(line, []byte("<<<<<<< ")) || bytes.HasPrefix(line, []byte(">>>>>>> ")) {
			t.Errorf("%s has a mark of a conflict: %s", at, line)
		}
	})
}

// eachLine looks at each line of the files of text in the repository; at names file and line.
func eachLine(t *testing.T, look func(at string, line []byte)) {
	t.Helper()
	top := root(t)
	seen := 0
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".git" || d.IsDir() && path == filepath.Join(top, "bin") {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.IndexByte(text[:min(len(text), 8000)], 0) >= 0 {
			return nil // a binary
		}
		seen++
		rel, _ := filepath.Rel(top, path) // both are absolute
		for i, line := range bytes.Split(text, []byte("\n")) {
			look(fmt.Sprintf("%s:%d", rel, i+1), line)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("walk the repository: %v", err)
	}
	if seen < 10 {
		t.Errorf("%d files were read: is %s the repository?", seen, top)
	}
}

func TestMachinePathsAreFound(t *testing.T) {
	slash := "/" // so that this file does not name what it forbids
	for text, want := range map[string]bool{
		"see " + slash + "home/ann/x.log":        true,
		slash + "root/go/pkg/mod":                true,
		"\"" + slash + "Users/ann\"":             true,
		"at " + slash + "builds/group/project":   true,
		"C:" + `\Users\ann`:                      true,
		"https://example.org/home/page":          false,
		"./internal/work/x":                      false,
		"$HOME/home/x":                           false,
		"the path " + slash + "home":             false,
		"GET " + slash + "letters/work/1":        false,
		"a " + slash + "tmp/x of no one machine": false,
	} {
		if got := machinePath.MatchString(text); got != want {
			t.Errorf("%q is found: %v, want %v", text, got, want)
		}
	}
}
