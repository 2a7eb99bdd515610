package wire

import (
	"bytes"

	"github.com/rollbackd/rollbackd/internal/strictjson"
)

// lookUp finds the string or integer literal at the steps of a JSON pointer. found is false when nothing stands there.
// flaw says why the body cannot be read, or holds something else there (a float, an object, null …).
func lookUp(body []byte, steps []string) (text string, found bool, flaw string) {
	value, err := strictjson.Lookup(body, steps)
	switch {
	case err != nil:
		return "", false, "cannot be read: " + err.Error()
	case value == nil:
		return "", false, ""
	}
	switch c := value[0]; {
	case c == '{':
		return "", true, "has an object for a key"
	case c == '[':
		return "", true, "has an array for a key"
	case c == 't', c == 'f', c == 'n':
		return "", true, "has " + string(value) + " for a key"
	case c == '"':
		if text, err = strictjson.Unquote(value); err != nil {
			return "", true, err.Error()
		}
		return text, true, ""
	case bytes.ContainsAny(value, ".eE"):
		return "", true, "has a number for a key that is no integer literal"
	}
	return string(value), true, ""
}
