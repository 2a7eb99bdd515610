package dedup

import (
	"strings"
	"unicode/utf8"
)

// cutText makes s fit a VARCHAR of so many characters: valid UTF-8, and never half a character at the end.
func cutText(s string, characters int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= characters || utf8.RuneCountInString(s) <= characters {
		return s
	}
	kept := 0
	for i := range s {
		if kept == characters-1 {
			return s[:i] + "…"
		}
		kept++
	}
	return s
}

// orNull is s for a column that says NULL for nothing.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return []byte(s)
}
