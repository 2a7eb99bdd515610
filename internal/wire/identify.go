package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/strictjson"
)

// Tags under which messages without an identity of their own are filed. No producer can claim them.
const (
	TagUnidentified = "rollbackd.unidentified"
	TagConflict     = "rollbackd.conflict"
	reservedTags    = "rollbackd."
)

// Identified names a message.
type Identified struct {
	Identity dedup.Identity // of the message's row
	BodyHash [sha256.Size]byte

	header string // the header that a copy must keep for the key to stay the same; "" if none
}

// FiledError says why a message is filed under a tag of rollbackd's; its text stands in the row's remark.
type FiledError struct {
	Tag, Key string // the originals: any bytes
	Why      string
}

func (e *FiledError) Error() string {
	return fmt.Sprintf("%s (tag %s, key %s)", e.Why, quote(e.Tag), quote(e.Key))
}

// quote shows foreign bytes within bounds.
func quote(s string) string {
	const most = 300
	if len(s) <= most {
		return strconv.QuoteToGraphic(s)
	}
	return fmt.Sprintf("%s… of %d bytes", strconv.QuoteToGraphic(s[:most]), len(s))
}

// FiledNote is how the remark of a message that is filed under a key of rollbackd's own ends: with its original tag,
// unless that is "" here, and key.
func FiledNote(tag, key string) string {
	if tag == "" {
		return ", key " + quote(key) + ")"
	}
	return "(tag " + quote(tag) + ", key " + quote(key) + ")"
}

// Identify names the message: its tag is the AMQP type, else the first routing key; its key comes from the first source
// that exists. A source that exists but is unusable does not fall through to the next. A message without a usable tag
// or key is named too, under TagUnidentified by what it consists of, and the error (an *FiledError) says why; the same
// message and all its copies get the same name again.
func Identify(group string, sources []KeySource, queue string, d rabbit.Delivery) (Identified, error) {
	id := Identified{BodyHash: sha256.Sum256(d.Body)}
	tag := d.Type
	if tag == "" {
		_, tag = firstRoute(&d, queue)
	}
	name, header, why := findKey(sources, &d, id.BodyHash)
	id.header = header
	if why == "" {
		if flaw := textFlaw(name, dedup.MaxKey); flaw != "" {
			why = "its key " + flaw
		}
	}
	if strings.HasPrefix(tag, reservedTags) {
		why = "its tag begins with " + reservedTags + ", which is reserved"
	} else if flaw := textFlaw(tag, dedup.MaxTag); flaw != "" {
		why = "its tag " + flaw
	}
	if why != "" {
		id.Identity = filed(group, TagUnidentified, tag, name, d.Body)
		return id, &FiledError{Tag: tag, Key: name, Why: why}
	}
	id.Identity = dedup.Identity{Group: group, Tag: tag, Key: name}
	return id, nil
}

// Conflict is the identity under which a message is filed whose own is taken by another body, and the error for its
// remark.
func Conflict(id Identified, body []byte) (Identified, error) {
	own := id.Identity
	id.Identity = filed(own.Group, TagConflict, own.Tag, own.Key, body)
	return id, &FiledError{Tag: own.Tag, Key: own.Key, Why: "another body has taken its key"}
}

// filed makes a key from everything that makes the message what it is, each part with its length before it, so that no
// two messages share one.
func filed(group, tag, originalTag, originalKey string, body []byte) dedup.Identity {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(originalTag), []byte(originalKey), body} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write(part)
	}
	return dedup.Identity{Group: group, Tag: tag, Key: "sha256:" + hex.EncodeToString(h.Sum(nil))}
}

// findKey looks at one source after the other. header is the one that it came from. why is not empty when there is no
// key or the source is unusable; name then stands for what was found.
func findKey(sources []KeySource, d *rabbit.Delivery, bodyHash [sha256.Size]byte) (name, header, why string) {
	mark, marked := rabbit.ReadUnreadable(d.Headers)
	if mark.Lost {
		return unreadableName(mark, d), "", "its properties cannot be read: " + mark.Why
	}
	for i := range sources {
		s := &sources[i]
		switch {
		case s.name != "":
			if marked { // the key may have stood there: the next source would give the message another one
				return unreadableName(mark, d), "", "its headers cannot be read: " + mark.Why
			}
			if v, ok := d.Headers[s.name]; ok {
				name, flaw := headerText(v)
				if flaw != "" {
					flaw = "its header " + quote(s.name) + " " + flaw
				}
				return name, s.name, flaw
			}
		case s.text == fromMessageID && d.MessageID != "":
			return d.MessageID, "", ""
		case s.text == fromCorrelationID && d.CorrelationID != "":
			return d.CorrelationID, "", ""
		case s.text == fromBodyHash:
			return hex.EncodeToString(bodyHash[:]), "", ""
		case s.steps != nil:
			name, found, flaw := lookUp(d.Body, s.steps)
			if flaw != "" {
				return "", "", "its body " + flaw + " (" + s.text + ")"
			}
			if found {
				return name, "", ""
			}
		}
	}
	return "", "", "it has none of the sources of a key"
}

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
		unquoted, err := strictjson.Unquote(value)
		if err != nil {
			return "", true, err.Error()
		}
		return string(unquoted), true, ""
	case bytes.ContainsAny(value, ".eE"):
		return "", true, "has a number for a key that is no integer literal"
	}
	return string(value), true, ""
}

// unreadableName stands for the key of a message whose headers nobody can read. Two of them with the same body are told
// apart by what their headers were, and by what else a producer may number its messages with.
func unreadableName(mark rabbit.Unreadable, d *rabbit.Delivery) string {
	return fmt.Sprintf("headers sha256:%s, message_id %q, correlation_id %q",
		mark.Digest, d.MessageID, d.CorrelationID)
}

// headerText is a header's value as a key. A flawed value is represented by what no other value is represented by.
func headerText(v any) (text, flaw string) {
	if text, ok := textOf(v); ok {
		return longText(text)
	}
	if n, ok := integer(v); ok {
		return strconv.FormatInt(n, 10), ""
	}
	if digest, ok := standInDigest(v); ok {
		return digest, "was over-long"
	}
	text, _ = longText(string(appendCanonical(nil, v)))
	return text, fmt.Sprintf("is neither text nor an integer but %T", v)
}

// longText represents a value that a copy may have to cut by its digest.
func longText(s string) (text, flaw string) {
	if len(s) <= maxKeptValue {
		return s, ""
	}
	sum := sha256.Sum256([]byte(s))
	return digestText(sum[:]), fmt.Sprintf("is over-long: %d bytes", len(s))
}

// textFlaw says why s cannot be part of a key, or "".
func textFlaw(s string, most int) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > most:
		return fmt.Sprintf("is over-long: %d bytes, at most %d", len(s), most)
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	}
	for _, r := range s {
		if (r < ' ' || r > '~') && unicode.IsControl(r) {
			return fmt.Sprintf("has the control character %U", r)
		}
	}
	return ""
}

// firstRoute is where the producer published to: by the headers of our copies, else by the oldest note of the broker
// that it moved the message out of the main queue, else by the delivery itself.
func firstRoute(d *rabbit.Delivery, queue string) (exchange, key string) {
	if key, ok := shortText(d.Headers[HeaderRoutingKey]); ok {
		exchange, _ := shortText(d.Headers[HeaderExchange])
		return exchange, key
	}
	for _, death := range slices.Backward(deathsFrom(d.Headers, queue)) {
		keys, _ := death["routing-keys"].([]any)
		if len(keys) > 0 {
			if key, ok := shortText(keys[0]); ok {
				return readText(death["exchange"]), key
			}
		}
	}
	return d.Exchange, d.RoutingKey
}

// deathsFrom are the notes of the broker (x-death) that it moved the message out of a queue, the latest first.
func deathsFrom(headers rabbit.Table, queue string) (deaths []rabbit.Table) {
	all, _ := headers[rabbit.HeaderDeath].([]any)
	for _, entry := range all {
		if death, _ := entry.(rabbit.Table); death != nil && readText(death["queue"]) == queue {
			deaths = append(deaths, death)
		}
	}
	return deaths
}

// shortText reads a name as AMQP allows it: text of at most 255 bytes.
func shortText(v any) (string, bool) {
	text, ok := textOf(v)
	return text, ok && len(text) <= 255
}

// LastDeath is why the broker took a message off the queue when it did so last: expired, rejected, maxlen or
// delivery_limit. It is empty when no entry of x-death says so.
func LastDeath(headers rabbit.Table, queue string) string {
	for _, death := range deathsFrom(headers, queue) {
		why := readText(death["reason"])
		if slices.Contains([]string{"expired", "rejected", "maxlen", "delivery_limit"}, why) {
			return why
		}
	}
	return ""
}
