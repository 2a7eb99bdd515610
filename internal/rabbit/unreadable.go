package rabbit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// HeaderUnreadable is the header that stands in place of all headers of a message which the client would not read.
// Copies of the message carry it on: see [ReadUnreadable].
const HeaderUnreadable = "x-rollbackd-unreadable-headers"

// Unreadable is what is known of headers that the client would not read.
type Unreadable struct {
	Why string // in words
	// Bytes and Digest are of what the producer wrote. What the broker adds is not in them, so they are the same each
	// time the message comes; for a table that cannot be walked from entry to entry they are of all bytes, and may
	// differ.
	Bytes  int64
	Digest string // SHA-256, hexadecimal
	// Lost says that the list of properties itself breaks off: what should follow is absent, though the message may
	// have it.
	Lost bool
}

var markText = regexp.MustCompile(`^([a-z0-9 ]{1,60}); (\d{1,10}) bytes; sha256:([0-9a-f]{64})(; properties lost)?$`)

// String is the value of HeaderUnreadable.
func (u Unreadable) String() string {
	text := fmt.Sprintf("%s; %d bytes; sha256:%s", u.Why, u.Bytes, u.Digest)
	if u.Lost {
		text += "; properties lost"
	}
	return text
}

// ReadUnreadable reads HeaderUnreadable. A value that String does not write is no mark.
func ReadUnreadable(h Table) (Unreadable, bool) {
	text, _ := h[HeaderUnreadable].(string)
	if text == "" {
		return Unreadable{}, false
	}
	m := markText.FindStringSubmatch(text)
	if m == nil {
		return Unreadable{}, false
	}
	n, err := strconv.ParseInt(m[2], 10, 64)
	return Unreadable{Why: m[1], Bytes: n, Digest: m[3], Lost: m[4] != ""}, err == nil
}

// Headers that RabbitMQ, or rollbackd for a copy's sake, writes beside the producer's.
const (
	HeaderDeath         = "x-death"           // an array of tables: which queues the broker moved the message out of
	HeaderDeliveryCount = "x-delivery-count"  // integer: deliveries that failed
	headerAcquiredCount = "x-acquired-count"  // integer: all deliveries, from RabbitMQ 4.3
	HeaderPublishedAt   = "x-published-at-ms" // integer: when it was first published, in milliseconds since 1970
	HeaderPutAt         = "x-put-at-ms"       // integer: when an outbox got it; of a relay, as the next one
	HeaderSentAt        = "x-sent-at-ms"      // integer: when it was sent from there, at last
	HeaderInterceptor   = "timestamp_in_ms"   // likewise, by RabbitMQ's timestamp interceptor, on a copy too
)

// BrokerWrites reports whether RabbitMQ acts on a header or writes it while the message waits: a copy must not carry
// it. CC and BCC would send further copies, a count or death of the original would be taken for the copy's.
func BrokerWrites(name string) bool {
	return name == "CC" || name == "BCC" || brokerAdds(name)
}

// brokerAdds reports whether RabbitMQ writes a header beside the producer's while the message waits.
func brokerAdds(name string) bool {
	if name == HeaderDeliveryCount || name == headerAcquiredCount {
		return true
	}
	return slices.ContainsFunc([]string{HeaderDeath, "x-first-death", "x-last-death"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// salvage makes headers of a table that the client would not read, and of what else nobody understands: the mark, and
// what helps to handle the message: to know that it came before, where it was published first, and when.
func salvage(table, rest []byte, mark Unreadable) Table {
	kept := Table{}
	var entries [4]uint64 // the sum of the hashes of all entries: RabbitMQ sorts them when it adds one
	for len(table) > 0 {
		name, value, behind, flaw := cutEntry(table)
		if flaw != "" {
			break
		}
		entry := table[:len(table)-len(behind)]
		table = behind
		if _, again := kept[name]; !again && worthKeeping(name, value[0]) {
			kept[name], _ = readValue(value, 0)
		} else if !again && name == HeaderDeath && value[0] == 'A' {
			kept[name] = deaths(value[5:])
		}
		if BrokerWrites(name) || name == HeaderInterceptor {
			continue
		}
		mark.Bytes += int64(len(entry))
		sum := sha256.Sum256(entry)
		var carry uint64
		for i := range entries {
			entries[i], carry = bits.Add64(entries[i], binary.LittleEndian.Uint64(sum[8*i:]), carry)
		}
	}
	mark.Bytes += int64(len(table) + len(rest))
	h, raw := sha256.New(), sha256.New()
	raw.Write(table)
	raw.Write(rest)
	_ = binary.Write(h, binary.LittleEndian, entries[:]) // a hash takes everything
	h.Write(raw.Sum(nil))
	mark.Digest = hex.EncodeToString(h.Sum(nil))
	kept[HeaderUnreadable] = mark.String()
	return kept
}

// worthKeeping reports whether a header is an integer that helps.
func worthKeeping(name string, typ byte) bool {
	some := []string{HeaderDeliveryCount, headerAcquiredCount, HeaderPublishedAt, HeaderInterceptor}
	return slices.Contains(some, name) && strings.IndexByte("bBsuIil", typ) >= 0
}

// deaths is what can be read of the beginning of x-death. RabbitMQ puts the latest death before the others, and those
// before what a producer has forged.
func deaths(b []byte) (kept []any) {
	for len(kept) < maxElements {
		value, rest, flaw := cutValue(b)
		if flaw != "" {
			break
		}
		if v, flaw := readValue(value, 1); flaw == "" {
			kept = append(kept, v)
		}
		b = rest
	}
	return kept
}
