package mysqldb

import "strings"

// Pairs is a condition that holds for n pairs of values of two columns, which are the beginning of an index. MariaDB
// finds an index for a list of pairs, but not in a DELETE or UPDATE for a list of one: that would read, and lock, the
// whole table. Where a table may be small, say FORCE INDEX too, or it is read from its beginning to its end, and what
// others have locked there is waited for.
func Pairs(a, b string, n int) string {
	if n == 1 {
		return a + " = ? AND " + b + " = ?"
	}
	return "(" + a + ", " + b + ") IN (" + strings.Repeat("(?, ?), ", n-1) + "(?, ?))"
}
