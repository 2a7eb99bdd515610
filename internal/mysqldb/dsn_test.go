package mysqldb

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestADSNThatCannotBeMeantIsRefusedAndNotShown(t *testing.T) {
	for dsn, want := range map[string]string{
		"mysql://u:hunter2@h/d":            "the DSN is a URL",
		"u:hunter2@tcp(h:1)":               "the DSN is not of the form",
		"u:hunter2@tcp(h:1/d":              "the DSN is not of the form",
		"u:hunter2@ftp/d":                  "the DSN ",
		"hunter2":                          "the DSN is not of the form",
		"":                                 "the DSN ",
		"u:hunter2/3t":                     "the DSN ",
		"u:hunter2@/3t@tcp(h:1)":           "the DSN ",
		"u:hunter2@tcp(h)/a@b":             "the DSN has a last / that is not before the database",
		"u:hunter2@tcp(h:1)/":              "the DSN names no database",
		"u:hunter2@tcp(h:1)/d?timeout=5":   "the DSN has a parameter",
		"tcp(hunter2:1)/d":                 "the DSN names no user",
		"u/hunter2@tcp(h:1)/d":             "the DSN has a user that looks like something else",
		"u:hunter2@tcp(h:1)/d?tls=hunter2": "the DSN has a parameter",
	} {
		_, _, err := Connector(dsn, Options{})
		assert.That(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "hunter2"),
			"%s: %v, want an error that says %q and no password", dsn, err, want)
	}
}
