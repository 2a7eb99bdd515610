package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Source says where a setting's value came from.
type Source string

// The sources.
const (
	FromDefault     Source = "default"
	FromEnvironment Source = "environment"
	FromFile        Source = "file"
)

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
	var c Config
	for _, v := range variables(&c) {
		s := &setting{Variable: v}
		s.find(ours)
		s.take()
		c.settings = append(c.settings, s)
	}
	c.checkTogether()
	warnings := unknownNames(ours, c.settings)
	if problems := c.problems(); len(problems) > 0 {
		return Config{}, warnings, &Error{Problems: problems}
	}
	return c, append(warnings, c.doubts()...), nil
}

// LogFormat is the text of LOG_FORMAT alone, whatever else is wrong: somebody has to say that. It is empty when it
// cannot be read, and not checked.
func LogFormat(environ []string) string {
	all := Variables()
	i := slices.IndexFunc(all, func(v Variable) bool { return v.key == "LOG_FORMAT" })
	s := setting{Variable: all[i]}
	s.find(prefixed(environ))
	return s.raw
}

// HTTPAddr is HTTP_ADDR alone, whatever else is wrong or cannot be read: a probe asks a daemon that is running, and
// must not call it dead because a file of a secret is being replaced. It is empty when the setting is off.
func HTTPAddr(environ []string) (string, error) {
	var c Config
	all := variables(&c)
	i := slices.IndexFunc(all, func(v Variable) bool { return v.key == "HTTP_ADDR" })
	s := &setting{Variable: all[i]}
	s.find(prefixed(environ))
	s.take()
	c.settings = []*setting{s}
	if problems := c.problems(); len(problems) > 0 {
		return "", &Error{Problems: problems}
	}
	return c.HTTPAddr, nil
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

func (c *Config) problems() []Problem {
	var problems []Problem
	for _, s := range c.settings {
		if s.wrong != "" {
			p := Problem{Variable: s.Name, What: s.wrong, Example: s.Example}
			if s.raw != "" {
				p.Value = strconv.Quote(shorten(s.show(s.raw)))
			}
			problems = append(problems, p)
		}
	}
	return problems
}

// of is the setting with the key; nil in a Config that did not come from Load.
func (c *Config) of(key string) *setting {
	for _, s := range c.settings {
		if s.key == key {
			return s
		}
	}
	return nil
}

// setting is a variable and what Load found.
type setting struct {
	Variable
	raw   string // empty also when there is no text
	from  Source
	path  string // the file, when from is FromFile
	wrong string // what is wrong, completes the sentence "NAME=value …"; then no further check looks at it
}

func (s *setting) refuse(format string, args ...any) { s.wrong = fmt.Sprintf(format, args...) }

// find finds the text: in the variable, in the file that X_FILE names, or the default. A variable that is set but empty
// is refused unless empty means something: it is a template that was not filled in.
func (s *setting) find(ours map[string]string) {
	raw, set := ours[s.Name]
	path, fileSet := ours[s.Name+fileSuffix]
	empty := "is set but empty: give a value, or leave it out for the default"
	switch {
	case set && fileSet:
		s.refuse("and %s are both set: keep one", s.Name+fileSuffix)
		return
	case fileSet:
		content, err := readValue(path)
		if err != nil {
			s.refuse("cannot be read from the file that %s names, %q: %v", s.Name+fileSuffix, s.showPath(path), err)
			return
		}
		s.raw, s.from, s.path = content, FromFile, path
		empty = "is empty: so is the file " + strconv.Quote(s.showPath(path))
	case set:
		s.raw, s.from = raw, FromEnvironment
		if s.Required {
			empty = "is set but empty"
		}
	case s.Required && (s.needless == nil || !s.needless()):
		s.refuse("is not set")
		return
	case s.computed != nil:
		s.raw, s.from = s.computed(), FromDefault
		return
	default:
		s.raw, s.from = s.Default, FromDefault
		return
	}
	if s.raw == "" && !s.empty {
		s.refuse("%s", empty)
	}
}

// take gives the field its value; without a text, or switched off, it stays zero. A default is not to blame: one that
// is computed from a bad setting is bad too.
func (s *setting) take() {
	if s.wrong != "" || s.isZero(s.raw) {
		if s.wrong == "" && s.raw == offWord && s.turnOff != nil {
			s.turnOff()
		}
		return
	}
	err := s.lineProblem(s.raw)
	if err == nil {
		err = s.set(s.raw)
	}
	if err != nil && s.from != FromDefault {
		s.refuse("%v", err)
	}
}

// isZero reports whether raw leaves the field zero.
func (v Variable) isZero(raw string) bool { return raw == "" || v.off && raw == offWord }
