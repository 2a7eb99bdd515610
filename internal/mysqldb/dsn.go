package mysqldb

import (
	"errors"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// DSNForm is what a DSN looks like.
const DSNForm = "user:password@tcp(host:3306)/database"

// ParseDSN reads a DSN and refuses one that cannot be what was meant. The driver quotes parts of a DSN that it cannot
// read, and in one that is malformed the password may be any part; so no error here holds any. They complete a sentence
// whose subject is the DSN.
func ParseDSN(raw string) (*mysql.Config, error) {
	dsn, err := mysql.ParseDSN(raw)
	switch {
	case strings.Contains(raw, "://"):
		return nil, errors.New("is a URL; wanted is the form " + DSNForm)
	case err != nil:
		before, _, has := strings.Cut(raw, "?")
		if _, err := mysql.ParseDSN(before); has && err == nil {
			return nil, errors.New("has a parameter after the ? that the driver refuses (a duration needs its unit)")
		}
		return nil, errors.New("is not of the form " + DSNForm)
	case dsn.DBName == "":
		return nil, errors.New("names no database after the last /")
	case dsn.User == "":
		return nil, errors.New("names no user")
	case strings.ContainsAny(dsn.User, "/;=()?& "):
		return nil, errors.New("has a user that looks like something else; wanted is the form " + DSNForm)
	case strings.ContainsAny(dsn.DBName, "@()?&;="): // a slash in the password, and no database after it
		return nil, errors.New("has a last / that is not before the database; wanted is the form " + DSNForm)
	}
	return dsn, nil
}
