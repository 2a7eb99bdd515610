package config

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestEveryFieldHasAVariableAndEveryVariableAField(t *testing.T) {
	fields := make(map[string]bool)
	for name, key := range keysByField() {
		if fields[key] {
			t.Errorf("field %s repeats the variable %s", name, key)
		}
		fields[key] = true
	}
	for field := range reflect.TypeFor[Config]().Fields() {
		if field.IsExported() && field.Tag.Get("env") == "" {
			t.Errorf("field %s has no env tag", field.Name)
		}
	}
	for _, v := range Variables() {
		if !fields[v.key] {
			t.Errorf("%s has no field, or is listed twice", v.Name)
		}
		delete(fields, v.key)
	}
	for key := range fields {
		t.Errorf("%s is not in Variables", key)
	}
}

func TestVariablesAreDescribed(t *testing.T) {
	for _, v := range Variables() {
		if v.Meaning == "" || v.Example == "" || v.Range == "" && v.key != "DEAD_LETTER_WEBHOOK_SECRET" {
			t.Errorf("%s lacks a meaning, a range or an example: %+v", v.Name, v)
		}
		if v.Required != (v.Default == "" && !v.empty) {
			t.Errorf("%s: Required is %v with default %q", v.Name, v.Required, v.Default)
		}
		if strings.ContainsAny(v.Default+v.Range+v.Meaning, "\n") {
			t.Errorf("%s is described on more than one line", v.Name)
		}
	}
}

// The doc comments of Config's fields are for readers of the code; they must not tell other defaults than the table.
func TestFieldCommentsTellTheDefault(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := make(map[string]string)
	ast.Inspect(file, func(n ast.Node) bool {
		if f, ok := n.(*ast.Field); ok && f.Tag != nil {
			comments[f.Names[0].Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
		}
		return true
	})
	variables := make(map[string]Variable)
	for _, v := range Variables() {
		variables[v.key] = v
	}
	for field, key := range keysByField() {
		want := "Default " + variables[key].Default + "."
		switch v := variables[key]; {
		case v.Required:
			want = "Required, no default."
		case v.empty:
			want = "Default empty."
		}
		if !strings.HasPrefix(comments[field], field+" ") || !strings.Contains(comments[field], want) {
			t.Errorf("comment of %s is %q, want it to begin with the name and to say %q", field, comments[field], want)
		}
	}
}

func TestMarkdownIsTheTableOfTheDocumentation(t *testing.T) {
	golden(t, "testdata/variables.md", Markdown())
}

func TestSettingsTellValueAndSource(t *testing.T) {
	write(t, t.TempDir()+"/x", "")
	path := t.TempDir() + "/group"
	write(t, path, "from-a-file\n")
	byName := make(map[string]Setting)
	settings := load(t, map[string]string{"ROLLBACKD_GROUP_FILE": path, "ROLLBACKD_LANES": "8"}).Settings()
	for _, s := range settings {
		byName[s.Name] = s
	}
	if len(settings) != len(Variables()) {
		t.Errorf("%d settings, want all %d", len(settings), len(Variables()))
	}
	want := []Setting{
		{Name: "ROLLBACKD_GROUP", Value: "from-a-file", Source: FromFile, File: path},
		{Name: "ROLLBACKD_LANES", Value: "8", Source: FromEnvironment},
		{Name: "ROLLBACKD_PREFETCH", Value: "2000", Source: FromDefault},
		{Name: "ROLLBACKD_ADMIN_TOKEN", Value: "", Source: FromDefault},
		{Name: "ROLLBACKD_AMQP_URL", Value: "amqp://guest:***@localhost:5672/", Source: FromEnvironment},
	}
	for _, w := range want {
		if diff := cmp.Diff(w, byName[w.Name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", w.Name, diff)
		}
	}
}

func TestRatePrintsAsItIsParsed(t *testing.T) {
	for _, text := range []string{"100/1m", "3/1h30m", "1/1s"} {
		r, err := parseRate(text)
		if err != nil || r.String() != text {
			t.Errorf("parseRate(%q) = %v, %v", text, r, err)
		}
	}
	if got := (Rate{}).String(); got != "off" {
		t.Errorf("the zero Rate prints as %q, want off", got)
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		write(t, path, got)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); -update rewrites it:\n%s", path, diff)
	}
}
