// Package sqltext reads the text of a statement as far as it matters to the transaction in which it would run. It must
// not send anything, nor know who asks.
package sqltext

import (
	"cmp"
	"slices"
	"strings"
)

// Kind is what a text is to a transaction, as far as it can be told without running it. Of several statements the
// greatest counts.
type Kind uint8

const (
	Plain   Kind = iota // it leaves the transaction and the session as they are
	Lasting             // the session is changed behind it, the transaction is not
	Opaque              // nobody can tell: it runs what is not in the text, or nobody here knows its statement
	Ending              // it ends the transaction, or changes how transactions end, or what the engine says in it
)

// OurSavepoint stands behind the engine's first statements in a transaction, and is gone when that is. No text of a
// handler's may name it.
const OurSavepoint = "rollbackd_batch"

// naming is Plain, or Ending: as it names a savepoint of the handler's, or ours.
const naming = Ending + 1

// beginnings are the first words of statements, and what these are: of several the longest counts, and what has none
// is opaque. No server ends a transaction for the plain ones. Those that end it are from the lists of MySQL's and
// MariaDB's manuals of what commits by itself, and what begins or ends a transaction. LOAD DATA commits with some
// engines, and reads what is no part of a message. USE leads what the engine writes behind the handler into another
// schema.
var beginnings = table(map[Kind]string{
	Plain:   "SELECT, INSERT, UPDATE, DELETE, REPLACE, WITH, TABLE, VALUES, DO, SHOW, EXPLAIN, DESCRIBE, DESC",
	Lasting: "CREATE TEMPORARY TABLE, CREATE OR REPLACE TEMPORARY TABLE, DROP TEMPORARY TABLE",
	// NOT ATOMIC is MariaDB's block of statements, and ANALYZE of one its EXPLAIN
	Opaque: "BEGIN NOT, ANALYZE",
	Ending: "COMMIT, ROLLBACK, ROLLBACK WORK, RELEASE, BEGIN, START, XA, CREATE, CREATE OR, CREATE OR REPLACE, " +
		"CREATE TEMPORARY, CREATE OR REPLACE TEMPORARY, DROP, DROP TEMPORARY, ALTER, RENAME, TRUNCATE, GRANT, REVOKE, " +
		"INSTALL, UNINSTALL, LOCK, UNLOCK, OPTIMIZE, REPAIR, CHECK, CACHE, LOAD, FLUSH, RESET, STOP, CHANGE, IMPORT, " +
		"SHUTDOWN, USE, ANALYZE TABLE, ANALYZE LOCAL, ANALYZE NO_WRITE_TO_BINLOG",
	naming: "SAVEPOINT, RELEASE SAVEPOINT, ROLLBACK TO, ROLLBACK TO SAVEPOINT, ROLLBACK WORK TO, " +
		"ROLLBACK WORK TO SAVEPOINT",
})

// settings are what SET must not name: how transactions end, in which characters the server reads a text (the driver
// quotes values for utf8mb4 alone), and the time and the id of the rows that the engine writes behind the handler.
// Behind opaque ones something may hide, such as another way of reading strings and names.
var settings = table(map[Kind]string{
	Opaque: "SQL_MODE, ROLE, RESOURCE",
	Ending: "AUTOCOMMIT, COMPLETION_TYPE, TRANSACTION, TRANSACTION_ISOLATION, TX_ISOLATION, TRANSACTION_READ_ONLY, " +
		"TX_READ_ONLY, PASSWORD, CHARACTER, CHARSET, CHARACTER_SET_CLIENT, CHARACTER_SET_CONNECTION, " +
		"COLLATION_CONNECTION, TIMESTAMP, INSERT_ID",
})

func table(lists map[Kind]string) map[string]Kind {
	kinds := map[string]Kind{}
	for kind, list := range lists {
		for words := range strings.SplitSeq(list, ", ") {
			kinds[words] = kind
		}
	}
	return kinds
}

// Read reads a text as MySQL and MariaDB would with the sql_mode of our sessions; what are the first words of the
// statement that counts, unless it is plain.
func Read(text string) (all Kind, what string) {
	r := &reader{text: text}
	for n := 0; ; n++ {
		for r.next(); r.is("(") || r.is(";"); {
			r.next()
		}
		if r.kind == 0 {
			if all == Plain && namesGetLock(text) { // it outlasts the transaction
				all = Lasting
			}
			return all, what
		}
		from := r.from
		r.executed = r.executed && r.inside
		one := r.statement()
		if (r.executed || r.broken || n > 0) && one < Opaque { // the server may read another text, or two
			one = Opaque
		}
		if one > all {
			all, what = one, firstWords(text[from:])
		}
	}
}

// writing are the verbs of what changes rows.
var writing = []string{"INSERT", "UPDATE", "DELETE", "REPLACE"}

// Writes reports whether a plain statement is one that changes rows.
func Writes(text string) bool {
	r := &reader{text: text}
	return slices.Contains(writing, r.verb())
}

// verb goes to the word that says what a statement does, also where a WITH stands before it.
func (r *reader) verb() string {
	for r.next(); r.is("("); {
		r.next()
	}
	if !r.is("WITH") {
		return strings.ToUpper(r.token)
	}
	for depth := r.depth; r.kind != 0; r.next() {
		word := strings.ToUpper(r.token)
		if r.depth == depth && (word == "SELECT" || slices.Contains(writing, word)) {
			return word
		}
	}
	return ""
}

// Locks reports whether a text keeps others out without writing: by a locking SELECT, or by a named lock.
func Locks(text string) bool {
	r := &reader{text: text}
	return r.verb() == "SELECT" && Names(text, "UPDATE") || namesGetLock(text)
}

// Rows are those that an UPDATE or DELETE names, its table and condition as they stand in the text, and how many
// placeholders stand before the condition; "" for other statements, and where values stand in the place of a table.
func Rows(text string) (rows string, before int) {
	r := &reader{text: text}
	r.next()
	verb := strings.ToUpper(r.token)
	if verb != "UPDATE" && verb != "DELETE" {
		return "", 0
	}
	from := r.at
	for r.next(); r.kind != 0; r.next() {
		switch {
		case r.kind == '?':
			before++
		case r.depth > 0:
		case verb == "DELETE" && r.is("FROM"):
			from = r.at
		case r.is("SET") || verb == "DELETE" && r.is("WHERE"):
			if before > 0 {
				return "", 0
			}
			rows = text[from:r.from]
		}
		if r.depth == 0 && r.is("WHERE") {
			return strings.ReplaceAll(strings.TrimSpace(rows)+" WHERE"+text[r.at:], "`", ""), before
		}
	}
	return "", 0
}

// Target is the table that a statement changes, as the text names it; of several the first. "" when there is none.
func Target(text string) (table string) {
	r := &reader{text: text}
	verb := r.verb()
	if !slices.Contains(writing, verb) {
		return ""
	}
	for r.next(); slices.ContainsFunc(modifiers, r.is); {
		r.next()
	}
	for ; r.kind == 'w' || r.kind == '`' || r.kind == '.'; r.next() {
		if table != "" && r.kind != '.' && !strings.HasSuffix(table, ".") {
			break // an alias, or what comes behind the table
		}
		table += strings.Trim(r.token, "`")
	}
	return table
}

// modifiers may stand between a verb of writing and its table.
var modifiers = []string{"LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "QUICK", "IGNORE", "INTO", "FROM"}

// Names reports whether a name stands in a text, outside of strings and comments.
func Names(text, name string) bool {
	r := &reader{text: text}
	for r.next(); r.kind != 0; r.next() {
		if (r.kind == 'w' || r.kind == '`') && strings.EqualFold(strings.Trim(r.token, "`"), name) {
			return true
		}
	}
	return false
}

// namesGetLock reports whether GET_LOCK stands somewhere in a text, in any case.
func namesGetLock(text string) bool {
	const get, lock = "GET", "LOCK"
	for before, rest, more := strings.Cut(text, "_"); more; before, rest, more = strings.Cut(rest, "_") {
		if strings.EqualFold(before[max(0, len(before)-len(get)):], get) &&
			strings.EqualFold(rest[:min(len(rest), len(lock))], lock) {
			return true
		}
	}
	return false
}

// firstWords are enough to find a statement again.
func firstWords(text string) string {
	const most, mostBytes = 3, 60
	text, _, _ = strings.Cut(text[:min(len(text), mostBytes)], ";")
	fields := strings.Fields(text)
	return strings.ToValidUTF8(strings.Join(fields[:min(len(fields), most)], " "), "")
}

// statement reads one statement, whose first token is at hand, up to its end.
func (r *reader) statement() Kind {
	if r.is("SET") {
		return r.set()
	}
	is, known, last := Opaque, *r, *r
	for words := ""; ; words += " " {
		words += strings.ToUpper(last.token)
		kind, ok := beginnings[words]
		if !ok {
			break
		}
		is, known = kind, last
		last.next()
	}
	*r = known // what stands behind the known words may be in a comment that some servers execute
	if is == naming {
		is = Plain
		if r.next(); strings.EqualFold(strings.Trim(r.token, "`"), OurSavepoint) { // it proves whose the transaction is
			is = Ending
		}
	}
	return r.end(is)
}

// set reads what is assigned to: variables of the user's own are nobody else's.
func (r *reader) set() (all Kind) {
	target, depth := true, r.depth
	for r.next(); r.kind != 0 && r.kind != ';'; r.next() {
		name := strings.ToUpper(strings.Trim(r.token, "`"))
		switch {
		case r.kind == ',' && r.depth == depth:
			target = true
		case r.kind == '=':
			target = false
		case !target || r.kind != 'w' && r.kind != '`':
		case name == "STATEMENT": // FOR which this is set
			return r.end(max(all, Opaque))
		case name == "NAMES":
			all = max(all, Lasting)
			if r.next(); !strings.EqualFold(strings.Trim(r.token, "'\""), "utf8mb4") {
				all = Ending
			}
		default:
			all = max(all, cmp.Or(settings[name], Lasting))
		}
	}
	return all
}

// end goes to the end of the statement, as far as there may be another one behind it.
func (r *reader) end(is Kind) Kind {
	executed := r.executed
	if r.kind != ';' && strings.IndexByte(r.text[r.at:], ';') < 0 {
		r.at = len(r.text)
	}
	for r.kind != 0 && r.kind != ';' {
		r.next()
	}
	r.executed = executed // what it is was read before
	return is
}

// reader splits a text into tokens.
type reader struct {
	text     string
	at       int    // behind the token
	from     int    // where the token begins
	kind     byte   // of the token: w a word, ` a name, ' a string, @ a variable of the user's, 0 the end, else itself
	token    string // with its quotes
	depth    int    // in parentheses, behind the token
	inside   bool   // in a comment that some servers execute
	executed bool   // there was one
	broken   bool   // a string or a comment has no end, or a string stands where not all servers see it
}

func (r *reader) is(word string) bool { return strings.EqualFold(r.token, word) }

// next takes the next token.
func (r *reader) next() {
	r.blank()
	r.from, r.kind = r.at, 0
	if r.at < len(r.text) {
		switch c := r.text[r.at]; {
		case isWord(c):
			r.kind = 'w'
			r.word()
		case c == '\'' || c == '"':
			r.kind = '\''
			r.quoted(c)
		case c == '`':
			r.kind = '`'
			r.quoted(c)
		case c == '@' && !strings.HasPrefix(r.text[r.at:], "@@"):
			r.kind = '@'
			if r.at++; r.at < len(r.text) && strings.IndexByte("'\"`", r.text[r.at]) >= 0 {
				r.quoted(r.text[r.at])
			} else {
				r.word()
			}
		default:
			r.kind = c
			switch r.at++; c {
			case '(':
				r.depth++
			case ')':
				r.depth--
			case '@':
				r.at++
			}
		}
	}
	r.token = r.text[r.from:r.at]
}

// isWord reports whether c may stand in a keyword or in a name without quotes.
func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}

func (r *reader) word() {
	for r.at < len(r.text) && isWord(r.text[r.at]) {
		r.at++
	}
}

// quoted takes what begins with a quote: a backslash escapes in strings, and a quote that stands twice is itself.
func (r *reader) quoted(quote byte) {
	r.broken = r.broken || r.inside
	for r.at++; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; {
		case c == '\\' && quote != '`':
			r.at++
		case c == quote && strings.HasPrefix(r.text[r.at+1:], string(quote)):
			r.at++
		case c == quote:
			r.at++
			return
		}
	}
	r.at, r.broken = len(r.text), true
}

// blank skips white space and comments. What stands in a comment for servers to execute is read like all else.
func (r *reader) blank() {
	for r.at < len(r.text) {
		rest := r.text[r.at:]
		switch {
		case rest[0] <= ' ':
			r.at++
		case rest[0] == '#', strings.HasPrefix(rest, "--") && (len(rest) == 2 || rest[2] <= ' '):
			r.skip("\n")
		case strings.HasPrefix(rest, "/*!"), strings.HasPrefix(rest, "/*M!"):
			r.broken = r.broken || r.inside
			r.inside, r.executed = true, true
			for r.skip("!"); r.at < len(r.text) && r.text[r.at] >= '0' && r.text[r.at] <= '9'; {
				r.at++
			}
		case strings.HasPrefix(rest, "/*"):
			r.at += 2
			r.broken = !r.skip("*/") || r.broken
		case r.inside && strings.HasPrefix(rest, "*/"):
			r.inside = false
			r.at += 2
		default:
			return
		}
	}
	r.broken = r.broken || r.inside
}

// skip goes behind end, or to the end of the text.
func (r *reader) skip(end string) bool {
	i := strings.Index(r.text[r.at:], end)
	if i < 0 {
		r.at = len(r.text)
		return false
	}
	r.at += i + len(end)
	return true
}
