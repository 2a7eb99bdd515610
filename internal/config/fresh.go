package config

import (
	"os"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

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
	return (&fresh{Variable: s, last: s.raw, warn: warn}).text
}

// fresh is one setting whose file is read again.
type fresh struct {
	*Variable
	warn func(Warning)

	mu   sync.Mutex
	last string // the last good text; guarded by mu
	told string // what was warned of and still holds; guarded by mu
}

func (f *fresh) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if info, err := os.Stat(f.path); err == nil && !info.Mode().IsRegular() {
		return f.last // a pipe has been read to its end
	}
	now, err := readWithin(f.path, rereadTimeout)
	problem := ""
	switch {
	case err != nil:
		problem = "cannot be read again: " + err.Error()
	case now == f.last:
	case now == "" || !f.accepts(now):
		problem = "holds a malformed value now"
	case f.secret.fixed(now) != f.secret.fixed(f.last):
		problem = "names another server, database or parameter now: that needs a restart"
	default:
		f.last = now
	}
	if problem != "" && problem != f.told {
		f.warn(Warning{Variable: f.Name + fileSuffix, What: problem + "; the former value stays in use"})
	}
	f.told = problem
	return f.last
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
