package wire_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// FuzzIdentify holds: never a panic, the same bytes give the same key, any other byte another key, and a key that the
// log takes.
func FuzzIdentify(f *testing.F) {
	f.Add("stock.rollback", "order-1", []byte(`{"order_sn":"1"}`), uint8(0), byte(1), uint16(0))
	f.Add("t\x00", "k\xff", []byte(`{"order_sn":"\ud800"}`), uint8(3), byte(255), uint16(3))
	from := make([][]wire.KeySource, len(everyKeyFrom))
	for i, list := range everyKeyFrom {
		from[i] = sources(f, list)
	}
	f.Fuzz(func(t *testing.T, tag, key string, body []byte, which uint8, flip byte, at uint16) {
		s := from[int(which)%len(from)]
		build := func(tag, key string, body []byte) rabbit.Delivery {
			return rabbit.Delivery{RoutingKey: "r", Message: rabbit.Message{
				Type: tag, MessageID: key, CorrelationID: key, Body: body,
				Headers: rabbit.Table{"x-message-key": key, "k": []byte(key), "x-retry": key, "Type": key},
			}}
		}
		d := build(tag, key, body)
		id, err := wire.Identify("g", s, "main", d)
		require.OK(t, id.Identity.Validate()) // else the log would refuse it
		again, err2 := wire.Identify("g", s, "main", build(tag, key, bytes.Clone(body)))
		require.That(t, id == again && (err == nil) == (err2 == nil), "%v, then %v", id, again)
		if flip == 0 {
			return
		}
		change := func(old string) string {
			if old == "" {
				return old
			}
			b := []byte(old)
			b[int(at)%len(b)] ^= flip
			return string(b)
		}
		if other := change(tag); other != tag {
			o, _ := wire.Identify("g", s, "main", build(other, key, body))
			require.That(t, o.Identity != id.Identity, "tags %q and %q have the same key %v", tag, other, id.Identity)
		}
		if other := change(string(body)); other != string(body) && err != nil {
			if o, err := wire.Identify("g", s, "main", build(tag, key, []byte(other))); err != nil && o.Identity == id.Identity {
				t.Fatalf("bodies %q and %q are filed under the same key", body, other)
			}
		}
		usesKey := strings.HasPrefix(s[0].String(), "header:x-message-key") || s[0].String() == "header:k" ||
			s[0].String() == "property:message_id"
		if other := change(key); other != key && usesKey {
			o, _ := wire.Identify("g", s, "main", build(tag, other, body))
			require.That(t, o.Identity != id.Identity, "keys %q and %q are the same", key, other)
		}
		copied := rabbit.Delivery{Message: wire.Copy(d, "main", wire.CopyOptions{Identity: id, Error: key})}
		c, _ := wire.Identify("g", s, "main", copied)
		require.Is(t, c.Identity, id.Identity, "the copy is")
	})
}

func FuzzParseKeySources(f *testing.F) {
	for _, list := range slices.Concat(everyKeyFrom, goodKeyFrom) {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		got, err := wire.ParseKeySources(list)
		if err != nil {
			return
		}
		var texts []string
		for _, s := range got {
			texts = append(texts, s.String())
		}
		again, err := wire.ParseKeySources(strings.Join(texts, ","))
		require.That(t, err == nil && len(again) == len(got), "%q reads as %q and then fails: %v", list, texts, err)
		_, _ = wire.Identify("g", got, "main", rabbit.Delivery{Message: rabbit.Message{Body: []byte(list)}})
	})
}

// FuzzReadHeaders gives every header of ours, and x-death, the same foreign value in each type.
func FuzzReadHeaders(f *testing.F) {
	f.Add("2026-11-21T10:00:00Z", int64(5), 1.5)
	f.Add("main", int64(-1), 1e300)
	f.Fuzz(func(t *testing.T, text string, n int64, x float64) {
		for _, v := range []any{
			text, []byte(text), n, int32(n), uint8(n), x, float32(x), time.Unix(n, 0), nil, n > 0,
			rabbit.Decimal{Value: int32(n)}, rabbit.Table{text: n}, []any{text, n},
			[]any{rabbit.Table{"queue": text, "exchange": n, "routing-keys": []any{text}}},
		} {
			d := rabbit.Delivery{RoutingKey: "r", Message: rabbit.Message{Headers: rabbit.Table{}}}
			for _, name := range []string{
				"x-death", "timestamp_in_ms", wire.HeaderPublishedAt, wire.HeaderAttempt, wire.HeaderReason, wire.HeaderError,
				wire.HeaderExchange, wire.HeaderRoutingKey, wire.HeaderFirstFailedAt, wire.HeaderDeadAt, wire.HeaderReplays,
				wire.HeaderDropped,
			} {
				d.Headers[name] = v
			}
			info := wire.ReadCopy(d.Headers)
			require.That(t, info.Attempt >= 0 && info.Replays >= 0 && len(info.Error) <= wire.MaxErrorBytes &&
				info.DeadAt.Year() <= 9999, "%T %v reads as %+v", v, v, info)
			_, _ = wire.PublishedAt(d.Message)
			b := wire.MarshalProperties(d)
			_, err := wire.UnmarshalProperties(b)
			require.That(t, err == nil && len(b) <= wire.MaxPropertiesBytes, "%d bytes, %v: %s", len(b), err, b)
			id, _ := wire.Identify("g", sources(t, "header:k,body:sha256"), text, d)
			again, _ := wire.Identify("g", sources(t, "header:k,body:sha256"), text, rabbit.Delivery{
				Message: wire.Copy(d, text, wire.CopyOptions{Identity: id}),
			})
			require.Is(t, id.Identity, again.Identity, "%T: became", v)
		}
	})
}
