package dedup

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf16"
)

// Search is how far a bounded look through the log came.
type Search struct {
	Seen int  // rows that were looked at
	All  bool // these were all
}

// Mentioning finds the identities of one tag whose remark, or whose story, holds a text: what could not be identified
// is filed under a key of rollbackd's own, and only its remark names the original. Of rows and of events it looks at
// most at each, in the order of the primary key.
func (l *Log) Mentioning(ctx context.Context, group, tag, text string, most int) ([]Identity, Search, error) {
	s := Search{All: true}
	var keys []Identity
	for _, part := range []struct{ table, index, column string }{
		{l.table, "PRIMARY", "remark"}, {l.events, "by_identity", "error"},
	} {
		some := sqlOf("(SELECT group_name, msg_tag, msg_key, "+part.column+" AS words FROM "+part.table+
			" FORCE INDEX ("+part.index+") WHERE group_name = ? AND msg_tag = ? ORDER BY msg_key LIMIT ?) AS some",
			[]byte(group), []byte(tag), most)
		var seen int
		if err := sqlOf("SELECT COUNT(*) FROM "+some.String(), some.args...).scan(ctx, l.db, &seen); err != nil {
			return nil, s, fmt.Errorf("count what is filed under %s: %w", tag, err)
		}
		s.Seen, s.All = s.Seen+seen, s.All && seen < most
		some.add(" WHERE LOCATE(?, words) > 0", text)
		found, err := list(ctx, l.db, sqlOf("SELECT DISTINCT group_name, msg_tag, msg_key FROM "+some.String(), some.args...),
			func(k *Identity) []any { return []any{&k.Group, &k.Tag, &k.Key} })
		if err != nil {
			return nil, s, fmt.Errorf("look for %q in what is filed under %s: %w", text, tag, err)
		}
		keys = append(keys, found...)
	}
	slices.SortFunc(keys, Identity.Compare)
	return slices.Compact(keys), s, nil
}

// bodiesPerQuery bounds how many bodies, of 256 KiB at most, are looked through by one statement.
const bodiesPerQuery = 300

// Holding calls each with every row whose body holds one of the words: of the latest rows in each of the states, at
// most so many per state. Rows in success keep no body.
func (l *Log) Holding(
	ctx context.Context, group string, states []Status, words [][]byte, most int, each func(Row) error,
) (Search, error) {
	s := Search{All: true}
	for _, status := range states {
		f := Filter{Group: group, Statuses: []Status{status}}
		for left, more := most, true; more && left > 0; more = f.After != "" {
			f.Limit = min(left, MaxListed)
			rows, next, err := l.List(ctx, f)
			if err != nil {
				return s, err
			}
			for some := range slices.Chunk(rows, bodiesPerQuery) {
				if err := l.holding(ctx, some, words, each); err != nil {
					return s, fmt.Errorf("look into the bodies of %d rows in %v: %w", len(some), status, err)
				}
			}
			s.Seen, left, f.After = s.Seen+len(rows), left-len(rows), next
			s.All = s.All && (next == "" || left > 0)
		}
	}
	return s, nil
}

func (l *Log) holding(ctx context.Context, among []Row, words [][]byte, each func(Row) error) error {
	s := l.ofKeys(mapped(among, func(r Row) Identity { return r.Identity }), wholeColumns)
	s.add(" AND (FALSE")
	for _, w := range words {
		s.add(" OR LOCATE(?, msg_body) > 0", w)
	}
	s.add(")")
	found, err := l.rows(ctx, s)
	for _, r := range found {
		if err == nil {
			err = each(r)
		}
	}
	return err
}

// Groups are the groups that have rows, at most so many.
func (l *Log) Groups(ctx context.Context, most int) (_ []string, err error) {
	defer wrap(&err, "list the groups")
	return l.jump(ctx, "group_name", statement{}, most)
}

// Tags are the tags of a group; an error when there are more than a thousand.
func (l *Log) Tags(ctx context.Context, group string) (tags []string, err error) {
	defer wrap(&err, "list the tags of group %s", group)
	const tooMany = 1000
	tags, err = l.jump(ctx, "msg_tag", sqlOf("group_name = ? AND ", []byte(group)), tooMany)
	if err == nil && len(tags) == tooMany {
		err = fmt.Errorf("more than %d tags: name one", tooMany)
	}
	return tags, err
}

// jump reads the values of a column of the primary key by jumping from one to the next, most at most.
func (l *Log) jump(ctx context.Context, column string, where statement, most int) (all []string, err error) {
	for last := ""; len(all) < most; {
		s := sqlOf("SELECT "+column+" FROM "+l.table+" WHERE "+where.String()+column+" > ? ORDER BY "+column+" LIMIT 1",
			append(slices.Clone(where.args), []byte(last))...)
		next, err := list(ctx, l.db, s, value[string])
		if err != nil || len(next) == 0 {
			return all, err
		}
		last, all = next[0], append(all, next[0])
	}
	return all, nil
}

// Overdue is how long ago the lease of a claimed row ended or the next attempt of a failed one became due; 0 for a row
// that waits yet, or for nothing.
func (l *Log) Overdue(r Row) time.Duration {
	switch r.Status {
	case Processing:
		return max(0, r.Age-l.o.Lease)
	case Failed:
		return max(0, -l.untilDue(r))
	}
	return 0
}

// Begun lists rows of a group that stand as somebody reopened them whose tokens begin so, reopened after a time and
// until another, oldest first, limit at most. Whether their messages were published the log does not know.
func (l *Log) Begun(
	ctx context.Context, group, token string, after, upTo time.Time, limit int,
) (rows []Row, err error) {
	defer wrap(&err, "list the rows that %s reopened", token)
	var s statement
	s.add("SELECT " + rowColumns + " FROM " + l.table + " FORCE INDEX (by_status)")
	s.add(" WHERE group_name = ? AND consumer_status = ? AND consumer_times = 0", []byte(group), int(Failed))
	s.add(" AND LEFT(owner, ?) = ?", len(token), []byte(token))
	if !after.IsZero() {
		s.add(" AND consumer_timestamp > "+microTime, after.UnixMicro())
	}
	s.add(" AND consumer_timestamp <= "+microTime, upTo.UnixMicro())
	s.add(" ORDER BY consumer_timestamp LIMIT ?", limit)
	return l.rows(ctx, s)
}

// Field is a member of the JSON in a body, at whatever depth: its name, and its value as a text or an integer. It is
// found by how it is written, in every way that encoders write a text, so that a body which is no valid JSON has it
// too. A name that is written with escapes is not found, nor perhaps one in a body that is no UTF-8.
type Field struct {
	Name, Value string
	OrKey       bool // or the value is the message's key
}

// In reports whether a message with this key and body has the field.
func (f Field) In(key string, body []byte) bool {
	if f.OrKey && key == f.Value {
		return true
	}
	return bytes.Contains(body, []byte(f.word())) && regexp.MustCompile(f.pattern()).Match(body)
}

// word stands in every body that has the field; looking for it is much cheaper than the pattern.
func (f Field) word() string {
	if len(f.texts()) == 1 {
		return f.Value
	}
	return f.Name
}

// pattern matches the field alike in Go, in MySQL and in MariaDB.
func (f Field) pattern() string {
	var values []string
	for _, text := range f.texts() {
		values = append(values, `"`+regexp.QuoteMeta(text)+`"`)
	}
	if f.Value != "" && strings.Trim(f.Value, "-0123456789") == "" { // an integer of any length
		values = append(values, f.Value)
	}
	return fmt.Sprintf(`"%s"[[:space:]]*:[[:space:]]*(%s)[[:space:]]*[],}]`, regexp.QuoteMeta(f.Name),
		strings.Join(values, "|"))
}

// texts are the ways in which encoders write the value as a text, without its quotation marks: as it is, with < > and &
// escaped, with everything escaped beyond ASCII, and besides with slashes escaped.
func (f Field) texts() (all []string) {
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(f.Value) // a text always can be
	html, _ := json.Marshal(f.Value)
	raw := strings.TrimSuffix(plain.String(), "\n")
	raw = raw[1 : len(raw)-1]
	var ascii strings.Builder
	for _, r := range raw {
		switch {
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, high, low)
		case r > 0x7e:
			fmt.Fprintf(&ascii, `\u%04x`, r)
		default:
			ascii.WriteRune(r)
		}
	}
	for _, text := range []string{raw, string(html[1 : len(html)-1]), ascii.String(), strings.ReplaceAll(raw, "/", `\/`),
		strings.ReplaceAll(ascii.String(), "/", `\/`)} {
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// choose adds the condition that a row's message has the field.
func (f Field) choose(s *statement) {
	s.add(" AND (LOCATE(?, msg_body) > 0", []byte(f.word()))
	s.add(" AND CONVERT(msg_body USING utf8mb4) COLLATE utf8mb4_bin REGEXP ?", f.pattern())
	if f.OrKey {
		s.add(" OR msg_key = ?", []byte(f.Value))
	}
	s.add(")")
}
