package view

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// Hide says what of a message's body, properties and headers nobody may see on a page or through the API.
type Hide struct {
	// Bodies hides all of them.
	Bodies bool
	// Pointers are JSON pointers, as the steps behind each slash: what stands there in a body is replaced. A body that
	// cannot be read as JSON is hidden whole, because nobody knows what stands in it.
	Pointers [][]string
}

// What stands in place of what is hidden.
const (
	hiddenBody = "(hidden by ROLLBACKD_UI_HIDE_BODIES)"
	hiddenPart = "(hidden)"
	unreadable = "(no JSON, hidden because ROLLBACKD_UI_REDACT is set)"
)

// Any reports whether something is hidden. Downloads are then refused: they hold what the queue holds.
func (h Hide) Any() bool { return h.Bodies || len(h.Pointers) > 0 }

func (h Hide) letter(s *deadletter.Shown) {
	if !h.Any() {
		return
	}
	if len(s.BodyBytes) > 0 {
		s.BodyBytes, s.Body = nil, "?"
	}
	s.Body = h.text(s.Body)
	s.Properties, s.Headers = nil, nil
}

func (h Hide) explanation(e *operator.Explanation) {
	if !h.Any() {
		return
	}
	if e.Raw != "" {
		e.Body, e.Raw = "?", ""
	}
	e.Body, e.Props = h.text(e.Body), ""
}

// text is a body as it may be seen.
func (h Hide) text(body string) string {
	switch {
	case body == "" || !h.Any():
		return body
	case h.Bodies:
		return hiddenBody
	}
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil || decoder.More() {
		return unreadable
	}
	for _, steps := range h.Pointers {
		value = redact(value, steps)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return unreadable
	}
	return string(text)
}

// redact replaces what stands at the end of the steps. A step * is every element.
func redact(value any, steps []string) any {
	if len(steps) == 0 {
		return hiddenPart
	}
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			if name == steps[0] || steps[0] == "*" {
				v[name] = redact(inner, steps[1:])
			}
		}
	case []any:
		n, err := strconv.Atoi(steps[0])
		for i := range v {
			if steps[0] == "*" || err == nil && i == n {
				v[i] = redact(v[i], steps[1:])
			}
		}
	}
	return value
}
