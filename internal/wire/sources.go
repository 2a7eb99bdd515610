package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/strictjson"
)

// The sources that are neither a header nor a place in the body.
const (
	fromMessageID     = "property:message_id"
	fromCorrelationID = "property:correlation_id"
	fromBodyHash      = "body:sha256"
)

const sourcesExample = "header:x-message-key," + fromMessageID + "," + fromBodyHash

// KeySource is one place where a message's key may stand.
type KeySource struct {
	text  string   // as it was written
	name  string   // of a header; "" of other sources
	steps []string // of a JSON pointer, unescaped; nil of other sources
}

// String is the source as KEY_FROM names it.
func (s KeySource) String() string { return s.text }

// ParseKeySources reads ROLLBACKD_KEY_FROM: a comma-separated list of header:NAME, property:message_id,
// property:correlation_id, body:sha256 and json:/POINTER (RFC 6901). Neither a header name nor a pointer can contain a
// comma. Headers that a copy does not carry over as they were are refused, since a copy's identity would differ from
// its message's.
func ParseKeySources(list string) ([]KeySource, error) {
	var sources []KeySource
	for text := range strings.SplitSeq(list, ",") {
		text = strings.TrimSpace(text)
		s, err := parseSource(text)
		if err != nil {
			return nil, fmt.Errorf("key source %q %w; for example %s", text, err, sourcesExample)
		}
		if slices.ContainsFunc(sources, func(o KeySource) bool { return o.text == s.text }) {
			return nil, fmt.Errorf("key source %q is named twice", text)
		}
		if n := len(sources); n > 0 && sources[n-1].text == fromBodyHash {
			return nil, fmt.Errorf("key source %q is never used: every message has a body, so body:sha256 must be the last",
				text)
		}
		sources = append(sources, s)
	}
	return sources, nil
}

func parseSource(text string) (s KeySource, err error) {
	s.text = text
	switch kind, name, _ := strings.Cut(text, ":"); {
	case kind == "header":
		s.name, err = name, checkHeaderName(name)
	case kind == "json":
		s.steps, err = parsePointer(name)
	case !slices.Contains([]string{fromMessageID, fromCorrelationID, fromBodyHash}, text):
		err = errors.New("is none of header:NAME, property:message_id, property:correlation_id, body:sha256, json:/POINTER")
	}
	return s, err
}

func checkHeaderName(name string) error {
	switch {
	case name == "" || len(name) > 255 || name != strings.TrimSpace(name): // a blank behind the colon is a slip
		return errors.New("must name a header of 1 to 255 bytes, without blanks around it")
	case strings.HasPrefix(name, ownPrefix), name == HeaderPublishedAt, name == rabbit.HeaderInterceptor,
		rabbit.BrokerWrites(name):
		return errors.New("names a header that RabbitMQ or rollbackd rewrites, so a copy would get another key")
	}
	return nil
}

// parsePointer splits a JSON pointer.
func parsePointer(p string) ([]string, error) {
	if !strings.HasPrefix(p, "/") || !utf8.ValidString(p) {
		return nil, errors.New("must be a JSON pointer that begins with /, like json:/order_sn")
	}
	steps, ok := strictjson.Steps(p[1:])
	if !ok {
		return nil, errors.New("has a ~ that is neither ~0 nor ~1")
	}
	return steps, nil
}

// Remake makes the message of an identity of which only the body and perhaps its message id are known: it says its tag
// as its type, and its key where the first source looks that can be filled in. False when it would be another message
// all the same: the key comes from the body, and the body has none or another one.
func Remake(
	sources []KeySource, queue string, id dedup.Identity, body []byte, messageID string,
) (rabbit.Delivery, bool) {
	d := rabbit.Delivery{Message: rabbit.Message{
		Type: id.Tag, MessageID: messageID[:min(len(messageID), dedup.MaxMessageID)], Body: body,
		DeliveryMode: rabbit.Persistent,
	}}
	for i := range sources {
		if fillIn(&d, &sources[i], id.Key) {
			break
		}
	}
	own, err := Identify(id.Group, sources, queue, d)
	return d, err == nil && own.Identity == id
}

// fillIn puts a key where a source looks for it, and reports whether no later source is looked at.
func fillIn(d *rabbit.Delivery, s *KeySource, key string) bool {
	switch {
	case s.name != "":
		d.Headers = rabbit.Table{s.name: key}
	case s.steps != nil:
		_, found, flaw := lookUp(d.Body, s.steps)
		return found || flaw != ""
	case s.text == fromMessageID:
		d.MessageID = key
	case s.text == fromCorrelationID:
		d.CorrelationID = key
	}
	return true
}
