package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/caarlos0/env/v11"
)

// Source says where a setting's value came from.
type Source string

// The sources.
const (
	FromDefault     Source = "default"
	FromEnvironment Source = "environment"
	FromFile        Source = "file"
)

// given is the text of one setting.
type given struct {
	raw  string
	from Source
	path string // the file, when from is FromFile
}

// Problem is one bad setting.
type Problem struct {
	Variable string // name, with prefix
	Value    string // quoted, secrets masked; empty when the variable is not set
	What     string // what is wrong: completes the sentence that begins with name and value
	Example  string // a good value
}

// String is one line that names the variable, shows the value and an example.
func (p Problem) String() string {
	subject := p.Variable
	if p.Value != "" {
		subject += "=" + p.Value
	}
	return fmt.Sprintf("%s %s, for example %s=%s", subject, p.What, p.Variable, p.Example)
}

// Error is every bad setting of one environment, in the order of the documentation.
type Error struct{ Problems []Problem }

// Error has a line per problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Load reads the settings from environ, in the form of os.Environ. It reports all bad values at once as an *Error; the
// Config is then the zero one. The warnings hold what is not wrong enough to refuse, and are complete in both cases.
// Load opens the files that X_FILE variables name and nothing else.
func Load(environ []string) (Config, []Warning, error) {
	ours := prefixed(environ)
	l := loader{variables: Variables(), given: make(map[string]given), bad: make(map[string]bool)}
	for _, v := range l.variables {
		l.gather(v, ours)
	}
	l.parse()
	l.computeDefaults()
	l.checkEach()
	l.checkTogether()
	warnings := unknownNames(ours, l.variables)
	if len(l.problems) > 0 {
		return Config{}, warnings, &Error{Problems: l.sorted()}
	}
	l.cfg.given = l.given
	return l.cfg, append(warnings, l.doubts()...), nil
}

// prefixed keeps what is ours. The last of several entries of one name wins.
func prefixed(environ []string) map[string]string {
	ours := make(map[string]string)
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, Prefix) {
			ours[name] = value
		}
	}
	return ours
}

// loader carries one Load from step to step.
type loader struct {
	variables []Variable
	given     map[string]given // by key; only settings that have a text
	cfg       Config
	problems  []Problem
	bad       map[string]bool // keys with a problem: no further check looks at them
}

// refuse records a problem of the setting named by key.
func (l *loader) refuse(key, format string, args ...any) {
	i := slices.IndexFunc(l.variables, func(v Variable) bool { return v.key == key })
	v := l.variables[i]
	p := Problem{Variable: v.Name, What: fmt.Sprintf(format, args...), Example: v.Example}
	if g, ok := l.given[key]; ok && g.raw != "" {
		p.Value = strconv.Quote(shorten(v.show(g.raw)))
	}
	l.problems = append(l.problems, p)
	l.bad[key] = true
}

func (l *loader) sorted() []Problem {
	position := make(map[string]int, len(l.variables))
	for i, v := range l.variables {
		position[v.Name] = i
	}
	slices.SortStableFunc(l.problems, func(a, b Problem) int { return position[a.Variable] - position[b.Variable] })
	return l.problems
}

// gather finds the text of one setting: in the variable, in the file that X_FILE names, or its default. A variable that
// is set but empty is refused unless empty means something: it is a template that was not filled in, and env would
// quietly take the default.
func (l *loader) gather(v Variable, ours map[string]string) {
	raw, set := ours[v.Name]
	path, fileSet := ours[v.Name+fileSuffix]
	switch {
	case set && fileSet:
		l.refuse(v.key, "and %s are both set: keep one", v.Name+fileSuffix)
		return
	case fileSet:
		content, err := readValue(path)
		if err != nil {
			l.refuse(v.key, "cannot be read from the file that %s names: %v", v.Name+fileSuffix, err)
			return
		}
		l.given[v.key] = given{raw: content, from: FromFile, path: path}
	case set:
		l.given[v.key] = given{raw: raw, from: FromEnvironment}
	case v.Required:
		l.refuse(v.key, "is not set")
		return
	default:
		if !v.given {
			l.given[v.key] = given{raw: v.Default, from: FromDefault}
		}
		return
	}
	if l.given[v.key].raw == "" && !v.empty {
		what := "is set but empty: give a value, or leave it out for the default"
		if v.Required {
			what = "is set but empty"
		}
		if l.given[v.key].from == FromFile {
			what = "is empty: so is the file " + strconv.Quote(path)
		}
		l.refuse(v.key, "%s", what)
	}
}

// maxFileBytes bounds what X_FILE reads, so that a wrong path cannot fill the memory.
const maxFileBytes = 64 << 10

// readValue reads a setting from a file, without the newline that editors leave at its end.
func readValue(path string) (string, error) {
	if path == "" {
		return "", errors.New("the name is empty")
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		return "", fmt.Errorf("%q is a directory", path)
	case info.Size() > maxFileBytes:
		return "", fmt.Errorf("%q has %d bytes, at most %d are allowed", path, info.Size(), maxFileBytes)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r"), nil
}

// parse fills cfg. Only texts that are there, not empty and not "off" are handed over; all others stay zero. env names
// the Go field in its errors, so they are translated back to the variable.
func (l *loader) parse() {
	texts := make(map[string]string)
	for _, v := range l.variables {
		if g, ok := l.given[v.key]; ok && !l.bad[v.key] && !v.isZero(g.raw) {
			texts[v.key] = g.raw
		}
	}
	if len(texts) == 0 {
		return // env takes an empty map for none and would read the process's own environment
	}
	err := env.ParseWithOptions(&l.cfg, env.Options{Environment: texts, FuncMap: parsers()})
	keys := keysByField()
	for _, parseErr := range parseErrors(err) {
		key := keys[parseErr.Name]
		what := "must be " + l.variable(key).rule.text
		if p, ok := errors.AsType[problem](parseErr.Err); ok {
			what = string(p)
		}
		l.refuse(key, "%s", what)
	}
}

// isZero reports whether raw leaves the field zero.
func (v Variable) isZero(raw string) bool { return raw == "" || v.off && raw == offWord }

func (l *loader) variable(key string) Variable {
	return l.variables[slices.IndexFunc(l.variables, func(v Variable) bool { return v.key == key })]
}

// parseErrors are the parts of what env returned.
func parseErrors(err error) []env.ParseError {
	aggregate, ok := errors.AsType[env.AggregateError](err)
	if !ok {
		return nil
	}
	var parts []env.ParseError
	for _, e := range aggregate.Errors {
		if p, ok := errors.AsType[env.ParseError](e); ok {
			parts = append(parts, p)
		}
	}
	return parts
}

// keysByField maps the names of Config's fields to their keys.
func keysByField() map[string]string {
	keys := make(map[string]string)
	for field := range reflect.TypeFor[Config]().Fields() {
		if key, ok := field.Tag.Lookup("env"); ok {
			keys[field.Name] = key
		}
	}
	return keys
}

// fieldValues maps keys to the values of cfg's fields.
func fieldValues(cfg Config) map[string]any {
	values := make(map[string]any)
	rv := reflect.ValueOf(cfg)
	byField := keysByField()
	for _, name := range slices.Sorted(maps.Keys(byField)) {
		values[byField[name]] = rv.FieldByName(name).Interface()
	}
	return values
}
