package sql

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// verbs are the statements that may stand in a file. Whatever is not named here is refused, so that a statement of a
// future server cannot slip through.
var verbs = []string{"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "CALL"}

// because says of the others that somebody might try why they are refused.
var because = map[string]string{
	"COMMIT": endsIt, "ROLLBACK": endsIt, "BEGIN": endsIt, "START": endsIt, "XA": endsIt, "SAVEPOINT": endsIt,
	"RELEASE": endsIt,
	"CREATE":  commits, "ALTER": commits, "DROP": commits, "RENAME": commits, "TRUNCATE": commits, "GRANT": commits,
	"REVOKE": commits, "ANALYZE": commits, "OPTIMIZE": commits, "REPAIR": commits, "CHECK": commits, "INSTALL": commits,
	"LOCK": commits, "UNLOCK": commits, "FLUSH": commits,
	"SET":     "settings of the session would outlive the transaction and hold for other messages",
	"LOAD":    "it reads a file of the server or of this host, which is no part of a message",
	"PREPARE": hides, "EXECUTE": hides, "DEALLOCATE": hides, "HANDLER": "it reads past the transaction",
	"DO": "it changes no row; use SELECT", "USE": "the schema is the one of ROLLBACKD_MYSQL_DSN",
	"SHOW": "it changes no row", "EXPLAIN": "it changes no row", "DESCRIBE": "it changes no row",
}

const (
	endsIt  = "the transaction is rollbackd's, which commits it with the mark that the message is done"
	commits = "the server commits the transaction before it, or cannot undo it"
	hides   = "it hides a statement from whoever looks here"
)

// admit refuses a statement that could end the transaction or leave something outside it. What it lets through is still
// prepared by the server before anything is consumed, and the server takes one statement at a time.
func (f *File) admit(s *Statement) error {
	first := s.tokens[0]
	s.verb = strings.ToUpper(first.text)
	if first.kind != kindWord || !slices.Contains(verbs, s.verb) {
		why := because[s.verb]
		if first.kind != kindWord || why == "" {
			why = "a statement begins with SELECT, INSERT, UPDATE, DELETE, REPLACE or WITH"
		}
		return f.refuse(first.at, "%s is refused: %s", shorten(first.text), why)
	}
	if s.verb == "CALL" && !f.allowCall {
		return f.refuse(first.at, `CALL is refused: a procedure can commit, and nobody sees it here; if you answer for it, `+
			`write "-- allow call" before the first statement`)
	}
	if s.verb == "WITH" {
		s.verb = behindWith(s.tokens)
	}
	for i, t := range s.tokens {
		if err := refuseToken(s, t, i); err != nil {
			return &Error{f.Name, t.at, err}
		}
	}
	return nil
}

// lasting are functions that act on more than the transaction.
var lasting = []string{"GET_LOCK", "RELEASE_LOCK", "RELEASE_ALL_LOCKS", "SETVAL"}

func refuseToken(s *Statement, t token, i int) error {
	if t.kind != kindWord {
		return nil
	}
	upper := strings.ToUpper(t.text)
	called := i+1 < len(s.tokens) && s.tokens[i+1].mark("(")
	switch {
	case called && slices.Contains(lasting, upper):
		return fmt.Errorf("%s is refused: what it does is not undone with the transaction", upper)
	case upper == "INTO" && s.verb == "SELECT":
		return errors.New("SELECT … INTO is refused: a file or a variable is outside the transaction")
	case upper == "RETURNING" && s.verb != "SELECT":
		return errors.New("RETURNING is refused: the server would not say how many rows were changed")
	case upper == "DELAYED" && i == 1:
		return errors.New("DELAYED is refused: the rows would be written outside the transaction")
	}
	return nil
}

// behindWith is the verb of a statement that begins with WITH: the first outside all parentheses.
func behindWith(tokens []token) string {
	depth := 0
	for _, t := range tokens[1:] {
		switch {
		case t.mark("("):
			depth++
		case t.mark(")"):
			depth--
		case depth == 0 && t.kind == kindWord && slices.Contains(verbs[:5], strings.ToUpper(t.text)):
			return strings.ToUpper(t.text)
		}
	}
	return "SELECT"
}

// writes reports whether the statement may change rows.
func (s *Statement) writes() bool { return s.verb != "SELECT" }

// checkOrder refuses a guard "else done" behind anything that may have written: the message would be marked done with
// half of its effect.
func (f *File) checkOrder() error {
	var wrote *Statement
	for in, s := range f.all {
		if s.expect != nil && s.verb == "CALL" {
			return f.refuse(s.expect.at, "a CALL has no number of rows to expect: a procedure can SIGNAL what is wrong")
		}
		if s.expect != nil && s.expect.other == Done {
			switch {
			case in.each:
				return f.refuse(s.expect.at, `"else done" must stand in a section "-- once": behind the first item there is `+
					`something to undo`)
			case wrote != nil:
				return f.refuse(s.expect.at, `"else done" must stand before any write, but the statement at %v writes`, wrote.At)
			case s.writes() && slices.Contains(s.expect.counts, 0):
				return f.refuse(s.expect.at, `"else done" of a write answers that no row was changed, so that 0 cannot be `+
					`expected`)
			}
		}
		if wrote == nil && s.writes() {
			wrote = s
		}
	}
	return nil
}

// shorten keeps the beginning of what is repeated in an error.
func shorten(s string) string {
	const most = 60
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return s
}
