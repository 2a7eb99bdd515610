package sql

import (
	"slices"
	"strings"
)

// outboxTable is the one table of rollbackd's that a file may write, by an INSERT of these columns. The others are the
// relay's: what it has sent is told by them.
const outboxTable = "rollbackd_outbox"

var outboxColumns = []string{
	"msg_tag", "msg_key", "body", "content_type", "headers", "exchange", "routing_key", "due_at",
}

// besidesOutbox are the tokens without the name of the outbox, if the statement does no more to it than to put messages
// in. ON DUPLICATE KEY UPDATE would change one that a relay may have sent, and IGNORE would lose one whose key another
// body has, or cut it (traps D5).
func (s *Statement) besidesOutbox() []token {
	r := &reader{tokens: s.tokens}
	r.word("INSERT")
	r.try(r.has("LOW_PRIORITY", "HIGH_PRIORITY"))
	r.word("INTO")
	if at := r.at; at+1 < len(s.tokens) && s.tokens[at+1].mark(".") {
		r.name()
		r.mark(".")
	}
	named := r.at
	r.take(r.peek().isColumn() && strings.EqualFold(r.peek().text, outboxTable))
	r.mark("(")
	r.list(",", func() { r.take(r.peek().isColumn() && containsFold(outboxColumns, r.peek().text)) })
	r.mark(")")
	for !r.bad && !r.end() {
		r.take(!r.has("DUPLICATE"))
	}
	if r.bad {
		return s.tokens
	}
	return slices.Delete(slices.Clone(s.tokens), named, named+1)
}
