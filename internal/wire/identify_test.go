package wire_test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

const defaultKeyFrom = "header:x-message-key,property:message_id,body:sha256"

func sources(t require.Test, list string) []wire.KeySource {
	t.Helper()
	return require.Get(wire.ParseKeySources(list))(t)
}

// by sets the header that a key comes from first, unless another source is named.
func by(v any) func(*rabbit.Delivery) { return header("x-message-key", v) }

func body(text string) func(*rabbit.Delivery) {
	return func(d *rabbit.Delivery) { d.Body = []byte(text) }
}

func typed(name string) func(*rabbit.Delivery) { return func(d *rabbit.Delivery) { d.Type = name } }

func message(change func(*rabbit.Delivery)) rabbit.Delivery {
	d := rabbit.Delivery{
		Exchange: "stock", RoutingKey: "stock.rollback", Message: rabbit.Message{Body: []byte(`{"order_sn":"1"}`)},
	}
	if change != nil {
		change(&d)
	}
	return d
}

func header(name string, v any) func(*rabbit.Delivery) {
	return func(d *rabbit.Delivery) { d.Headers = rabbit.Table{name: v} }
}

func TestKeyComesFromTheFirstSourceThatExists(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte(`{"order_sn":"1"}`))
	hash := hex.EncodeToString(sum[:])
	all := func(d *rabbit.Delivery) {
		d.Headers, d.MessageID, d.CorrelationID = rabbit.Table{"x-message-key": "h"}, "m", "c"
	}
	type test struct {
		name, from string
		change     func(*rabbit.Delivery)
		key        string // "" means unidentified
	}
	tests := []test{
		{"header first", defaultKeyFrom, all, "h"},
		{"then message_id", defaultKeyFrom, func(d *rabbit.Delivery) { d.MessageID = "m" }, "m"},
		{"then the body", defaultKeyFrom, nil, hash},
		{"order of the list", "property:correlation_id,header:x-message-key", all, "c"},
		{"json text", "json:/order_sn,body:sha256", nil, "1"},
		{"json absent", "json:/nothing,body:sha256", nil, hash},
		{"header bytes", defaultKeyFrom, by([]byte("b")), "b"},
		{"header int", defaultKeyFrom, by(int32(-5)), "-5"},
		{"header byte", defaultKeyFrom, by(uint8(200)), "200"},
		{"header int64", defaultKeyFrom, by(int64(math.MinInt64)), "-9223372036854775808"},
		{"255 bytes", defaultKeyFrom, by(strings.Repeat("k", 255)), strings.Repeat("k", 255)},
		{"inner spaces and emoji", defaultKeyFrom, by(" ü 🎁 "), " ü 🎁 "},

		{"control character in message_id", defaultKeyFrom, func(d *rabbit.Delivery) { d.MessageID = "\x00" }, ""},
		{"no source at all", "header:x-message-key,property:message_id", nil, ""},
		{"body is no JSON", "json:/order_sn,body:sha256", body("{"), ""},
		{"json null", "json:/order_sn,body:sha256", body(`{"order_sn":null}`), ""},
	}
	for _, unusable := range []any{
		"", nil, 5.0, true, rabbit.Table{"k": "v"}, time.Unix(1, 0), []any{"k"}, strings.Repeat("k", 256),
		strings.Repeat("k", 100_000), "a\nb", "a\u0085b", "a\x7f", "a\xff",
	} {
		tests = append(tests, test{fmt.Sprintf("header %.20q", fmt.Sprint(unusable)), defaultKeyFrom, by(unusable), ""})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := message(tt.change)
			id, err := wire.Identify("g", sources(t, tt.from), "main", d)
			assert.That(t, id.BodyHash == sha256.Sum256(d.Body), "wrong body hash")
			assert.OK(t, id.Identity.Validate(), "the log would refuse", id.Identity)
			if tt.key != "" {
				want := (dedup.Identity{Group: "g", Tag: "stock.rollback", Key: tt.key})
				assert.That(t, id.Identity == want && err == nil, "Identify = %v, %v; want %v", id.Identity, err, want)
				return
			}
			e, ok := errors.AsType[*wire.FiledError](err)
			assert.That(t, ok && id.Identity.Tag == wire.TagUnidentified && e.Why != "" && len(err.Error()) <= 1000,
				"Identify = %v, %v; want unidentified", id.Identity, err)
		})
	}
}

func TestTagIsTheTypeElseTheFirstRoutingKey(t *testing.T) {
	t.Parallel()
	death := func(queue, exchange, key string) rabbit.Table {
		return rabbit.Table{
			"queue": queue, "exchange": exchange, "routing-keys": []any{key}, "reason": "delivery_limit", "count": int64(1),
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*rabbit.Delivery)
		tag    string // "" means unidentified
	}{
		{"type", typed("t"), "t"},
		{"routing key", nil, "stock.rollback"},
		{"our header", header(wire.HeaderRoutingKey, "first"), "first"},
		{"our header as bytes", header(wire.HeaderRoutingKey, []byte("first")), "first"},
		{"type before our header", func(d *rabbit.Delivery) {
			d.Type, d.Headers = "t", rabbit.Table{wire.HeaderRoutingKey: "first"}
		}, "t"},
		{"our header of an odd type", header(wire.HeaderRoutingKey, 7), "stock.rollback"},
		{"our header over-long", header(wire.HeaderRoutingKey, strings.Repeat("x", 256)), "stock.rollback"},
		{"x-death", header("x-death", []any{death("main", "", "latest"), death("other", "", "x"),
			death("main", "stock", "oldest"), death("other", "", "y")}), "oldest"},
		{"x-death of other queues", header("x-death", []any{death("other", "", "x")}), "stock.rollback"},
		{"x-death forged", header("x-death", "nonsense"), "stock.rollback"},
		{"x-death of odd types", header("x-death", []any{nil, 5, rabbit.Table{"queue": "main"},
			rabbit.Table{"queue": 1, "routing-keys": 2}, rabbit.Table{"queue": "main", "routing-keys": []any{5}}}),
			"stock.rollback"},
		{"100 bytes", typed(strings.Repeat("t", 100)), strings.Repeat("t", 100)},
		{"101 bytes", typed(strings.Repeat("t", 101)), ""},
		{"reserved", typed("rollbackd.conflict"), ""},
		{"reserved routing key", func(d *rabbit.Delivery) { d.RoutingKey = "rollbackd.unidentified" }, ""},
		{"empty", func(d *rabbit.Delivery) { d.RoutingKey = "" }, ""},
		{"control character", typed("a\tb"), ""},
		{"invalid UTF-8", typed("\xc3"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id, err := wire.Identify("g", sources(t, "body:sha256"), "main", message(tt.change))
			assert.That(t, (err == nil) == (tt.tag != "") && id.Identity.Tag == cmp.Or(tt.tag, wire.TagUnidentified),
				"Identify = %v, %v; want tag %q", id.Identity, err, tt.tag)
		})
	}
}

func TestFiledKeysTellMessagesApart(t *testing.T) {
	t.Parallel()
	from := sources(t, "header:k")
	seen := map[dedup.Identity]string{}
	changes := map[string]func(*rabbit.Delivery){
		"other body": func(d *rabbit.Delivery) { d.Headers, d.Body = rabbit.Table{"k": "a\n"}, []byte("x") },
		"other tag":  func(d *rabbit.Delivery) { d.Headers, d.Type = rabbit.Table{"k": "a\n"}, "t" },
		"shifted":    func(d *rabbit.Delivery) { d.Headers, d.Type = rabbit.Table{"k": "\n"}, "stock.rollbacka" },
		"no key":     nil,
	}
	for i, key := range []any{
		"a\n", "a\r", 1.0, 2.0, true, false, []any{"a", "b"}, []any{"ab"}, rabbit.Table{"a": "b", "c": int8(1)},
		rabbit.Table{"a": "b", "c": int8(2)}, strings.Repeat("x", 5000), strings.Repeat("x", 4999) + "y",
		rabbit.Table{"x": strings.Repeat("x", 5000)}, rabbit.Table{"x": strings.Repeat("x", 5001)},
	} {
		changes[fmt.Sprintf("%d: %.20q", i, fmt.Sprint(key))] = header("k", key)
	}
	for name, change := range changes {
		id, err := wire.Identify("g", from, "main", message(change))
		assert.That(t, err != nil, "%s: identified as %v", name, id.Identity)
		other, ok := seen[id.Identity]
		assert.That(t, !ok, "%s and %s are filed under the same key", name, other)
		seen[id.Identity] = name
	}
	const gap = "\x00\x00\x00\x00\x00\x00\x00\x00" // as wide as a length
	for _, of := range [][3]string{                // tag, key, body
		{"t", "k", "b"}, {"T", "k", "b"}, {"t", "K", "b"}, {"t", "k", "B"},
		{"t", "k" + gap + "k", "b"}, {"t", "k", "k" + gap + "b"},
	} {
		own := wire.Identified{Identity: dedup.Identity{Group: "g", Tag: of[0], Key: of[1]}, BodyHash: [sha256.Size]byte{1}}
		id, err := wire.Conflict(own, []byte(of[2]))
		other, ok := seen[id.Identity]
		assert.That(t, !ok && err != nil && id.Identity.Tag == wire.TagConflict && id.Identity.Group == "g" &&
			id.BodyHash == own.BodyHash, "the conflict of %q is %v, %v, as %q is", of, id, err, other)
		seen[id.Identity] = of[0] + of[1] + of[2]
	}
}

var goodKeyFrom = []string{
	"header:a", " header:a , property:correlation_id ", "json:/a~1b/~0/0", "json:/", "header:X-Delivery-Count",
	"header:a:b",
}

func TestKeySourcesAreReadStrictly(t *testing.T) {
	t.Parallel()
	for _, good := range goodKeyFrom {
		_, err := wire.ParseKeySources(good)
		assert.OK(t, err, good)
	}
	for _, bad := range []string{
		"", ",", "header:a,", "header", "header:", "header:" + strings.Repeat("x", 256), "property:type", "property:", "body",
		"body:md5", "json:", "json:order_sn", "json:/~2", "json:/a~", "json:/\xff", "Header:a", "header:a,header:a",
		"body:sha256,property:message_id", "header:x-death", "header:x-first-death-queue", "header:x-last-death-reason",
		"header:x-delivery-count", "header:x-acquired-count", "header:CC", "header:BCC", "header:x-rollbackd-attempt",
		"header:x-published-at-ms", "header:timestamp_in_ms", "header: a",
	} {
		got, err := wire.ParseKeySources(bad)
		assert.That(t, err != nil && strings.Contains(err.Error(), "key source"), "%q: %v, %v; want an error", bad, got, err)
	}
}

func TestJSONPointerFindsOnlyWhatIsUnambiguous(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ pointer, body, want string }{ // want: "=key", "absent", or part of the flaw
		{"/a", `{"a":"x"}`, "=x"},
		{"/a", ` {"b":{"a":1},"a" : "x" , "c":[{"a":2}]} ` + "\n", "=x"},
		{"/a", `{"a":12345678901234567890}`, "=12345678901234567890"},
		{"/a", `{"a":-0}`, "=-0"},
		{"/a/b", `{"a":{"b":"x"}}`, "=x"},
		{"/a/1", `{"a":["x","y"]}`, "=y"},
		{"/0", `["x"]`, "=x"},
		{"/a~1b/~0", `{"a/b":{"~":"x"}}`, "=x"},
		{"/", `{"":"x"}`, "=x"},
		{"/ä", `{"\u00e4":"\ud83c\udf81\n\"\\\/"}`, "control character"},
		{"/ä", `{"\u00e4":"\ud83c\udf81\"\\\/"}`, "=🎁\"\\/"},
		{"/a", `{"A":"x"}`, "absent"},
		{"/a", `{}`, "absent"}, {"/a", `[]`, "absent"}, {"/a", `"a"`, "absent"}, {"/a", `1`, "absent"},
		{"/a", `null`, "absent"},
		{"/a/b", `{"a":"x"}`, "absent"}, {"/a/b", `{"a":null}`, "absent"}, {"/2", `["x","y"]`, "absent"},
		{"/01", `["x","y"]`, "absent"}, {"/-", `["x"]`, "absent"},
		{"/a", `{"a":1.0}`, "no integer literal"}, {"/a", `{"a":1e3}`, "no integer literal"}, {"/a", `{"a":true}`, "true"},
		{"/a", `{"a":null}`, "null"}, {"/a", `{"a":{}}`, "an object"}, {"/a", `{"a":[]}`, "an array"},
		{"/a", `{"a":""}`, "is empty"},
		{"/a", `{"a":"x","b":{"c":1,"c":1}}`, "twice"}, {"/a", `{"a":"x","a":"x"}`, "twice"}, {"/a", `{"a":"x","\u0061":"y"}`,
			"twice"}, {"/a/b", `{"a":{"b":"x"},"a":{}}`, "twice"},
		{"/a", `{"a":"x"}{}`, "end of the body"}, {"/a", `{"a":"x"},`, "end of the body"}, {"/a", "", "the body is empty"},
		{"/a", `{"a":01}`, "cannot be read"}, {"/a", `{"b":"\udc00","a":"x"}`, "surrogate"},
	} {
		d := message(body(tt.body))
		id, err := wire.Identify("g", sources(t, "json:"+tt.pointer), "main", d)
		got := "=" + id.Identity.Key
		switch {
		case err != nil && strings.Contains(err.Error(), "none of the sources"):
			got = "absent"
		case err != nil:
			got = err.Error()
		}
		assert.That(t, got == tt.want || tt.want[0] != '=' && strings.Contains(got, tt.want),
			"%s in %.40s: %s, want %s", tt.pointer, tt.body, got, tt.want)
		assert.That(t, bytes.Equal(d.Body, []byte(tt.body)), "%s changed the body %.40s", tt.pointer, tt.body)
	}
}

func TestIdentifyAllocatesNothingOnTheUsualWay(t *testing.T) {
	from := sources(t, defaultKeyFrom)
	d := message(by("order-1"))
	d.Headers["x-published-at-ms"] = int64(1_700_000_000_000)
	assert.AtMost(t, testing.AllocsPerRun(100, func() { _, _ = wire.Identify("g", from, "main", d) }), 0,
		"Identify allocates times")
}

func TestUnreadableHeadersAreNoReasonToTakeTheNextSource(t *testing.T) {
	t.Parallel()
	digest := strings.Repeat("0f", 32)
	mark := rabbit.Unreadable{Why: "nested deeper than 32", Bytes: 430, Digest: digest}
	const (
		headers    = "its headers cannot be read: nested deeper than 32"
		properties = "its properties cannot be read: nested deeper than 32"
	)
	lost := mark
	lost.Lost = true
	for _, tt := range []struct {
		name, from, id string
		mark           rabbit.Unreadable
		key, why       string // one of them
	}{
		{"a header comes first", "header:k,property:message_id", "id", mark, "", headers},
		{"a header would be reached", "property:message_id,header:k,body:sha256", "", mark, "", headers},
		{"a header is not reached", "property:message_id,header:k", "id", mark, "id", ""},
		{"no header is asked for", "json:/order_sn", "id", mark, "order-1", ""},
		{"properties are lost", "property:message_id,body:sha256", "", lost, "", properties},
		{"properties are lost, and the body has a key", "json:/order_sn", "", lost, "", properties},
	} {
		d := rabbit.Delivery{RoutingKey: "r", Message: rabbit.Message{
			Body: []byte(`{"order_sn":"order-1"}`), MessageID: tt.id,
			Headers: rabbit.Table{wire.HeaderUnreadable: tt.mark.String(), "x-delivery-count": int64(1)},
		}}
		id, err := wire.Identify("g", sources(t, tt.from), "main", d)
		assert.That(t, tt.why != "" || err == nil && id.Identity.Key == tt.key,
			"%s: %v, %v; want the key %q", tt.name, id.Identity, err, tt.key)
		assert.That(t, tt.why == "" || id.Identity.Tag == wire.TagUnidentified && strings.HasPrefix(fmt.Sprint(err), tt.why),
			"%s: %v, %v; want %q", tt.name, id.Identity, err, tt.why)
		o := wire.CopyOptions{Identity: id, Reason: dedup.ReasonUnidentified}
		letter := rabbit.Delivery{Message: wire.Copy(d, "main", o)}
		kept := require.Get(wire.UnmarshalProperties(wire.MarshalProperties(d)))(t)
		kept.Body = d.Body
		for where, d := range map[string]rabbit.Delivery{"its letter": letter, "its row": kept} {
			again, _ := wire.Identify("g", sources(t, tt.from), "main", d)
			assert.That(t, again.Identity == id.Identity, "%s: %s is %v, want %v", tt.name, where, again.Identity, id.Identity)
		}
		other, another := d, tt.mark
		another.Digest = strings.Repeat("1f", 32)
		other.Headers = rabbit.Table{wire.HeaderUnreadable: another.String()}
		d.MessageID, d.CorrelationID = "", "c"
		for what, d := range map[string]rabbit.Delivery{"headers": other, "properties": d} {
			o, _ := wire.Identify("g", sources(t, tt.from), "main", d)
			assert.That(t, tt.why == "" || o.Identity != id.Identity, "%s, other %s: the same %v", tt.name, what, o.Identity)
		}
	}
	short := "nested deeper than 32; 430 bytes; sha256:0f"
	for _, forged := range []any{nil, int64(1), "", short, strings.Repeat("x", 1<<16), mark.String() + "\n"} {
		h := rabbit.Table{wire.HeaderUnreadable: forged, "k": "key"}
		d := rabbit.Delivery{RoutingKey: "r", Message: rabbit.Message{Headers: h}}
		id, err := wire.Identify("g", sources(t, "header:k"), "main", d)
		assert.That(t, err == nil && id.Identity.Key == "key", "%.40v was taken for a mark: %v, %v", forged, id.Identity, err)
		_, ok := wire.Copy(d, "main", wire.CopyOptions{}).Headers[wire.HeaderUnreadable]
		assert.That(t, !ok, "a copy carries %.40v on", forged)
	}
}

func TestMain(m *testing.M) { stack.Main(m) }
