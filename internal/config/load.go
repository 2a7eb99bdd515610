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
	text     string
}

// String is one line that names the variable, shows the value, unless it is a secret, and an example.
func (p Problem) String() string { return p.text }

// Error is every bad setting of one environment, in the order of the documentation.
type Error struct{ Problems []Problem }

// Error has a line per problem.
func (e *Error) Error() string {
	var lines []string
	for _, p := range e.Problems {
		lines = append(lines, p.text)
	}
	return strings.Join(lines, "\n")
}

// Load reads the settings from environ, in the form of os.Environ. It reports all bad values at once as an *Error; the
// Config is then the zero one. The warnings hold what is not wrong enough to refuse, and are complete in both cases.
// Load opens the files that X_FILE variables name and nothing else. Who asks only the servers of some settings (keys
// without prefix; none: all) does without the others.
func Load(environ []string, asks ...string) (Config, []Warning, error) {
	ours := prefixed(environ)
	names := []string{""}
	if c, _ := single(environ, "QUEUES"); len(c.Queues) > 0 {
		names = c.Queues
	}
	all := make([]Config, len(names))
	var settings []*Variable
	var doubts []Warning
	for i, name := range names {
		c := &all[i]
		for _, v := range variables(c) {
			v.Required = v.Required && (len(asks) == 0 || slices.Contains(asks, v.key))
			c.take(v.of(name, ours), ours)
		}
		c.checkTogether()
		for _, before := range all[:i] {
			c.checkBeside(before)
		}
		c.refuseShared(name, ours)
		settings = append(settings, c.settings...)
		doubts = append(doubts, c.doubts()...)
	}
	warnings := unknownNames(ours, settings)
	if err := wrong(settings); err != nil {
		return Config{}, warnings, err
	}
	for _, w := range doubts {
		if !slices.Contains(warnings, w) { // a shared one is told once
			warnings = append(warnings, w)
		}
	}
	all[0].beside = all[1:]
	return all[0], warnings, nil
}

// single reads one setting, whatever else is wrong.
func single(environ []string, key string) (*Config, *Variable) {
	c := new(Config)
	for _, v := range variables(c) {
		if v.key == key {
			c.take(v, prefixed(environ))
		}
	}
	return c, c.settings[0]
}

// LogFormat is the text of LOG_FORMAT alone, whatever else is wrong: somebody has to say that. It is empty when it
// cannot be read, and not checked.
func LogFormat(environ []string) string {
	_, s := single(environ, "LOG_FORMAT")
	return s.raw
}

// HTTPAddr is HTTP_ADDR alone, whatever else is wrong or cannot be read: a probe asks a daemon that is running, and
// must not call it dead because a file of a secret is being replaced. It is empty when the setting is off.
func HTTPAddr(environ []string) (string, error) {
	c, _ := single(environ, "HTTP_ADDR")
	return c.HTTPAddr, wrong(c.settings)
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

// wrong is an *Error, or nil.
func wrong(settings []*Variable) error {
	var e Error
	for _, s := range settings {
		if s.wrong == "" {
			continue
		}
		subject := s.Name
		if s.raw != "" {
			subject += "=" + strconv.Quote(shorten(s.show(s.raw)))
		}
		p := Problem{s.Name, fmt.Sprintf("%s %s, for example %s=%s", subject, s.wrong, s.Name, s.Example)}
		if !slices.Contains(e.Problems, p) { // a shared one is told once
			e.Problems = append(e.Problems, p)
		}
	}
	if len(e.Problems) == 0 {
		return nil
	}
	return &e
}

// of is the setting with the key; nil in a Config that did not come from Load.
func (c *Config) of(key string) *Variable {
	for _, s := range c.settings {
		if s.key == key {
			return s
		}
	}
	return nil
}

func (s *Variable) refuse(format string, args ...any) { s.wrong = fmt.Sprintf(format, args...) }

// take finds the text of a setting and gives its field the value; without a text it stays zero. A default is not to
// blame: one that is computed from a bad setting is bad too.
func (c *Config) take(v Variable, ours map[string]string) {
	s := &v
	s.from, s.raw = FromDefault, v.Default
	c.settings = append(c.settings, s)
	s.find(ours)
	if s.wrong != "" || s.raw == "" {
		return
	}
	put, err := s.reads(s.raw)
	switch {
	case err == nil:
		put()
	case s.from != FromDefault:
		s.refuse("%v", err)
	}
}

// find finds the text: in the variable, in the file that X_FILE names, or the default. A variable that is set but empty
// is refused unless empty means something: it is a template that was not filled in.
func (s *Variable) find(ours map[string]string) {
	raw, set := ours[s.Name]
	path, fileSet := ours[s.Name+fileSuffix]
	empty := "is set but empty: give a value, or leave it out for the default"
	switch {
	case set && fileSet:
		s.raw = ""
		s.refuse("and %s are both set: keep one", s.Name+fileSuffix)
		return
	case fileSet:
		content, err := readWithin(path, fileTimeout)
		if err != nil {
			s.raw = ""
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
		s.raw = s.computed()
		return
	default:
		return
	}
	if s.raw == "" && !s.empty {
		s.refuse("%s", empty)
	}
}
