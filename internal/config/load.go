package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
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

const (
	// maxFileBytes bounds what X_FILE reads, so that a wrong path cannot fill the memory.
	maxFileBytes = 64 << 10
	// fileTimeout bounds how long a file may take: a pipe into which nobody writes, a file system that is away.
	fileTimeout = 5 * time.Second
	// byteOrderMark is U+FEFF in UTF-8. A file in UTF-16 has control characters, which no secret may have.
	byteOrderMark = "\ufeff"
)

// readWithin reads a setting from a file, without the newline that editors leave at its end and the byte order mark
// that some write before its beginning: nobody sees either, and each would be a part of a user's name or a password. No
// error holds the name, which may be the secret itself.
func readWithin(path string, timeout time.Duration) (string, error) {
	type content struct {
		text string
		err  error
	}
	read, until := make(chan content, 1), time.Now().Add(timeout)
	go func() { // a pipe that nobody opens for writing holds whoever opens it for reading
		text, err := readFile(path, until)
		read <- content{text, err}
	}()
	c := content{err: os.ErrDeadlineExceeded}
	select {
	case c = <-read:
	case <-time.After(timeout):
		if w, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil { // which lets it go
			_ = w.Close()
		}
	}
	if errors.Is(c.err, os.ErrDeadlineExceeded) {
		return "", fmt.Errorf("it has not been read to its end within %v: is it a pipe into which nobody writes?", timeout)
	}
	if e, ok := errors.AsType[*fs.PathError](c.err); ok {
		return "", e.Err
	}
	return c.text, c.err
}

func readFile(path string, until time.Time) (string, error) {
	if path == "" {
		return "", errors.New("the name is empty")
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		return "", errors.New("it is a directory")
	case !info.Mode().IsRegular() && info.Mode()&fs.ModeNamedPipe == 0:
		return "", errors.New("it is neither a file nor a pipe")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	_ = f.SetReadDeadline(until)     // a regular file has none, and needs none
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(content) > maxFileBytes {
		err = fmt.Errorf("it has %d bytes or more, at most %d are allowed", max(info.Size(), maxFileBytes+1), maxFileBytes)
	}
	value := strings.TrimPrefix(string(content), byteOrderMark)
	return strings.TrimSuffix(strings.TrimSuffix(value, "\n"), "\r"), err
}

// rereadTimeout bounds how long a connection waits for the file of its password.
const rereadTimeout = time.Second

// Fresh gives the text of a secret setting as it is now, to be asked for before each new connection: a password that
// was changed in the file of X_FILE is read again. Only the login of a URL or DSN may change while the process runs,
// because with another host, database or parameter it would silently work on something else. While the file cannot be
// read, is malformed or says anything else, the last good text holds, and warn is told why, once until that changes.
// What did not come from a file (a pipe is read once) never changes. Safe for many goroutines.
func (c Config) Fresh(key string, warn func(Warning)) func() string {
	s := c.of(key)
	switch {
	case s == nil:
		return func() string { return "" }
	case s.secret == nil || s.from != FromFile:
		return func() string { return s.raw }
	}
	var reading sync.Mutex
	last, told := s.raw, "" // the last good text, and what was warned of and still holds
	return func() string {
		reading.Lock()
		defer reading.Unlock()
		if info, err := os.Stat(s.path); err == nil && !info.Mode().IsRegular() {
			return last // a pipe has been read to its end
		}
		now, problem := s.again(last)
		if problem == "" {
			last = now
		} else if problem != told {
			warn(Warning{Variable: s.Name + fileSuffix, What: problem + "; the former value stays in use"})
		}
		told = problem
		return last
	}
}

// again reads the file of a secret again, and says why what it holds cannot follow on the last text.
func (s *Variable) again(last string) (now, problem string) {
	now, err := readWithin(s.path, rereadTimeout)
	switch {
	case err != nil:
		problem = "cannot be read again: " + err.Error()
	case now == last:
	case now == "" || !s.accepts(now):
		problem = "holds a malformed value now"
	case s.secret.fixed(now) != s.secret.fixed(last):
		problem = "names another server, database or parameter now: that needs a restart"
	}
	return now, problem
}

func dsnWithoutLogin(raw string) string {
	dsn, err := mysqldb.ParseDSN(raw)
	if err != nil {
		return ""
	}
	dsn.User, dsn.Passwd = "", ""
	return dsn.FormatDSN()
}

func urlWithoutLogin(raw string) string {
	m := urlForm.FindStringSubmatch(raw)
	if m == nil {
		return raw
	}
	return m[1] + m[3] + m[4] + m[5]
}

// Warning is something about a setting that does not stop the start.
type Warning struct {
	Variable string // name, with prefix
	What     string // completes the sentence that begins with the name
	Do       string // what to do about it; only [Config.Remarks] say that beside
}

// String is one line.
func (w Warning) String() string { return w.Variable + " " + w.What }

// testPrefix begins the names by which the tests are told about servers.
const testPrefix = Prefix + "TEST_"

// kubernetes sets variables for every service of a namespace; for one named rollbackd they have our prefix.
var kubernetes = regexp.MustCompile(`_SERVICE_|_PORT$|_PORT_[0-9]+_(TCP|UDP|SCTP)`)

// unknownNames warns of names with our prefix that are no setting, most likely a misspelling of one: the setting meant
// is then at its default. It never shows the value, which may be a secret under a misspelt name.
func unknownNames(ours map[string]string, settings []*Variable) []Warning {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	var warnings []Warning
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		known := slices.Contains(names, name) || slices.Contains(names, strings.TrimSuffix(name, fileSuffix))
		if !known && !strings.HasPrefix(name, testPrefix) && !kubernetes.MatchString(name) {
			warnings = append(warnings, Warning{
				Variable: name, What: "is no setting and has no effect; the nearest one is " + nearest(name, names),
			})
		}
	}
	return warnings
}

// nearest is the known name with the fewest edits to name; the first of several. A name that ends in _FILE is compared
// without it and gets it back.
func nearest(name string, known []string) string {
	stem, isFile := strings.CutSuffix(name, fileSuffix)
	best := slices.MinFunc(known, func(a, b string) int { return edits(stem, a) - edits(stem, b) })
	if isFile {
		best += fileSuffix
	}
	return best
}

// edits counts the insertions, deletions and replacements that make b out of a.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		replaced := row[0]
		row[0] = i + 1
		for j := range len(b) {
			if a[i] != b[j] {
				replaced++
			}
			replaced, row[j+1] = row[j+1], min(replaced, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
