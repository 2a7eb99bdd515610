package wire_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/wire"
)

func TestCopyKeepsWhatIsTheProducersAndDropsWhatActsOnTheBroker(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	d := rabbit.Delivery{
		Tag: 5, Redelivered: true, Exchange: "stock", RoutingKey: "stock.rollback", Count: 3,
		Message: rabbit.Message{
			Body: []byte("b"), ContentType: "a/b", ContentEncoding: "gzip", MessageID: "id", CorrelationID: "corr",
			ReplyTo: "reply",
			AppID:   "app", Timestamp: at, Priority: 3, DeliveryMode: rabbit.Transient, UserID: "u", Expiration: "1000",
			Headers: rabbit.Table{
				"mine": "stays", "cc": "stays", "x-retry": int64(1), "CC": []any{"a"}, "BCC": []any{"b"}, "x-death": []any{[]any{}},
				"x-first-death-queue": "q", "x-last-death-reason": "r", "x-delivery-count": int64(3), "x-acquired-count": int64(4),
				wire.HeaderDeadAt: "2026-01-02T03:04:05Z", wire.HeaderReason: "forged", wire.HeaderAttempt: int64(99),
				"x-rollbackd-foo": "forged", wire.HeaderFirstFailedAt: "2026-01-02T03:04:05.000Z",
			},
		},
	}
	before := len(d.Headers)
	got := wire.Copy(d, "main", wire.CopyOptions{Attempt: 2, Replays: 1, Error: "boom\xff"})
	want := rabbit.Message{
		Body: []byte("b"), ContentType: "a/b", ContentEncoding: "gzip", MessageID: "id", CorrelationID: "corr",
		ReplyTo: "reply",
		Type:    "stock.rollback", AppID: "app", Timestamp: at, Priority: 3, DeliveryMode: rabbit.Persistent,
		Headers: rabbit.Table{
			"mine": "stays", "cc": "stays", "x-retry": int64(1), wire.HeaderPublishedAt: at.UnixMilli(),
			wire.HeaderAttempt: int64(2), wire.HeaderReplays: int64(1), wire.HeaderError: "boom\uFFFD",
			wire.HeaderExchange: "stock", wire.HeaderRoutingKey: "stock.rollback",
			wire.HeaderFirstFailedAt: "2026-01-02T03:04:05.000Z",
		},
	}
	diff := cmp.Diff(want, got)
	assert.That(t, diff == "", "copy (-want +got):\n%s", diff)
	assert.That(t, len(d.Headers) == before && d.Headers[wire.HeaderReason] == "forged",
		"Copy changed the delivery's own headers")
	d.ReplyTo = "amq.rabbitmq.reply-to"
	assert.Is(t, wire.Copy(d, "main", wire.CopyOptions{}).ReplyTo, "", "reply_to would close the publishing channel")
	for says, lost := range map[int64]int64{7: 7, -7: 0} { // less than none is forged
		d.Headers = rabbit.Table{wire.HeaderDropped: says}
		for i := range 9000 {
			d.Headers[strconv.Itoa(i)] = nil
		}
		got = wire.Copy(d, "main", wire.CopyOptions{}) // which has three headers of ours among 8,000, and the count
		assert.Is(t, got.Headers[wire.HeaderDropped], any(lost+9000-7997), "headers that are lost by now")
	}
}

func TestLetterSaysWhyAndWhen(t *testing.T) {
	t.Parallel()
	d := message(nil)
	letter := wire.Copy(d, "main", wire.CopyOptions{
		Attempt: 5, Replays: 2, Error: "last words", Reason: dedup.ReasonExhausted,
	})
	info := wire.ReadCopy(letter.Headers)
	assert.AtMost(t, max(time.Since(info.DeadAt), time.Since(info.FirstFailedAt)), time.Minute, "since it failed")
	want := wire.CopyInfo{Reason: dedup.ReasonExhausted, Attempt: 5, Replays: 2, Error: "last words", Exchange: "stock",
		RoutingKey: "stock.rollback", DeadAt: info.DeadAt, FirstFailedAt: info.FirstFailedAt}
	assert.Is(t, info, want, "letter says")
	dead, failed := time.UnixMilli(1_700_000_000_123).UTC(), time.UnixMilli(1_600_000_000_123).UTC()
	info = wire.ReadCopy(wire.Copy(d, "main", wire.CopyOptions{
		Reason: dedup.ReasonCrashed, DeadAt: dead, FirstFailedAt: failed,
	}).Headers)
	assert.That(t, info.DeadAt.Equal(dead) && info.FirstFailedAt.Equal(failed),
		"times became %v, %v", info.DeadAt, info.FirstFailedAt)
	again := wire.ReadCopy(wire.Copy(rabbit.Delivery{Message: letter}, "main", wire.CopyOptions{Replays: 3}).Headers)
	assert.Is(t, again, wire.CopyInfo{Replays: 3, FirstFailedAt: want.FirstFailedAt, Exchange: "stock",
		RoutingKey: "stock.rollback"}, "replayed letter says")
}

func TestRetryCopySaysHowOftenItCameBack(t *testing.T) {
	t.Parallel()
	retry := wire.Copy(message(nil), "main", wire.CopyOptions{Deliveries: 2})
	assert.Is(t, wire.ReadCopy(retry.Headers).Deliveries, 2, "the copy says it came back times")
	huge := wire.Copy(rabbit.Delivery{Message: retry}, "main", wire.CopyOptions{Deliveries: 1 << 40})
	assert.Is(t, wire.ReadCopy(huge.Headers).Deliveries, 1<<31-1, "a count that no header can hold reads as")
	letter := wire.Copy(rabbit.Delivery{Message: retry}, "main", wire.CopyOptions{Reason: dedup.ReasonExhausted})
	assert.Is(t, wire.ReadCopy(letter.Headers).Deliveries, 0,
		"the letter says it came back times: a replay must begin anew")
}

func TestForgedHeadersReadAsNothing(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]any{
		"nil": nil, "float": 1.5, "table": rabbit.Table{}, "list": []any{1}, "text": "nonsense", "negative": int64(-1),
		"huge": int64(1 << 40), "bool": true, "bytes": []byte("\xff"),
	} {
		h := rabbit.Table{
			wire.HeaderAttempt: v, wire.HeaderReplays: v, wire.HeaderDeliveries: v, wire.HeaderReason: v, wire.HeaderDeadAt: v,
			wire.HeaderFirstFailedAt: v,
		}
		assert.Is(t, wire.ReadCopy(h), (wire.CopyInfo{}), "%s reads as", name)
	}
	got := wire.ReadCopy(rabbit.Table{
		wire.HeaderAttempt: "3", wire.HeaderReplays: uint8(2), wire.HeaderDeliveries: int64(4),
		wire.HeaderReason: []byte("conflict"), wire.HeaderDeadAt: time.Unix(1_700_000_000, 0),
		wire.HeaderError: strings.Repeat("é", 600) + "\xff", wire.HeaderExchange: []byte("e"), wire.HeaderRoutingKey: "k",
		wire.HeaderFirstFailedAt: []byte("2023-11-14T22:13:20+01:00"),
	})
	want := wire.CopyInfo{
		Attempt: 3, Replays: 2, Deliveries: 4, Reason: dedup.ReasonConflict, DeadAt: time.Unix(1_700_000_000, 0).UTC(),
		Error: strings.Repeat("é", 512), Exchange: "e", RoutingKey: "k", FirstFailedAt: time.Unix(1_699_996_400, 0).UTC(),
	}
	diff := cmp.Diff(want, got)
	assert.That(t, diff == "", "ReadCopy (-want +got):\n%s", diff)
	assert.That(t, wire.ReadCopy(nil) == (wire.CopyInfo{}), "no headers say something")
}

func TestPublishedAtTakesTheFirstUsableTime(t *testing.T) {
	t.Parallel()
	amqp := time.Unix(1_500_000_000, 0)
	ms := func(n int64) time.Time { return time.UnixMilli(n).UTC() }
	for name, tt := range map[string]struct {
		h    rabbit.Table
		at   time.Time
		want time.Time // zero: unknown
	}{
		"header": {rabbit.Table{wire.HeaderPublishedAt: int64(1_700_000_000_001), "timestamp_in_ms": int64(5)},
			amqp, ms(1_700_000_000_001)},
		"header as text":  {rabbit.Table{wire.HeaderPublishedAt: "1700000000001"}, amqp, ms(1_700_000_000_001)},
		"header as float": {rabbit.Table{wire.HeaderPublishedAt: 1.7e12}, amqp, ms(1_700_000_000_000)},
		"interceptor": {rabbit.Table{wire.HeaderPublishedAt: "soon", "timestamp_in_ms": int64(1_600_000_000_000)}, amqp,
			ms(1_600_000_000_000)},
		"AMQP timestamp":    {nil, amqp, amqp.UTC()},
		"zero and negative": {rabbit.Table{wire.HeaderPublishedAt: int64(0), "timestamp_in_ms": int64(-1)}, amqp, amqp.UTC()},
		"far future":        {rabbit.Table{wire.HeaderPublishedAt: int64(1 << 62)}, time.Unix(1<<50, 0), time.Time{}},
		"nothing":           {nil, time.Time{}, time.Time{}},
		"epoch":             {nil, time.Unix(0, 0), time.Time{}},
	} {
		got, ok := wire.PublishedAt(rabbit.Message{Headers: tt.h, Timestamp: tt.at})
		assert.That(t, got.Equal(tt.want) && ok == !tt.want.IsZero(), "%s: %v, %v; want %v", name, got, ok, tt.want)
	}
}

func TestPropertiesSurviveTheLog(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := producersMessage().Draw(t, "message")
		d := rabbit.Delivery{
			Exchange: shortText().Draw(t, "exchange"), RoutingKey: shortText().Draw(t, "key"),
			Message: rabbit.Message{
				ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, MessageID: m.MessageId,
				CorrelationID: m.CorrelationId, ReplyTo: m.ReplyTo, Type: m.Type, AppID: m.AppId, Timestamp: m.Timestamp,
				Priority: m.Priority, DeliveryMode: m.DeliveryMode, Headers: m.Headers,
			},
		}
		b := wire.MarshalProperties(d)
		require.That(t, len(b) <= wire.MaxPropertiesBytes, "%d bytes", len(b))
		got := require.Get(wire.UnmarshalProperties(b))(t)
		if len(d.Headers) == 0 {
			d.Headers = nil
		}
		diff := cmp.Diff(d, got, cmp.Comparer(sameFloat[float32]), cmp.Comparer(sameFloat[float64]))
		require.That(t, diff == "", "after the log (-want +got):\n%s\n%s", diff, b)
	})
}

func sameFloat[F float32 | float64](a, b F) bool { return a == b || a != a && b != b }

func TestHugePropertiesAreCutAndMarked(t *testing.T) {
	t.Parallel()
	d := message(func(d *rabbit.Delivery) {
		d.Headers = rabbit.Table{
			"x-message-key": "k", "huge": strings.Repeat("\x01", 100_000), "large": strings.Repeat("x", 20_000),
			"large2": strings.Repeat("x", 30_000),
		}
		d.Type = strings.Repeat("\xff", 255)
	})
	b := wire.MarshalProperties(d)
	require.That(t, len(b) <= wire.MaxPropertiesBytes && strings.Contains(string(b), `"cut":true`) &&
		strings.Contains(string(b), `"huge":{"$cut":"100005"}`), "%d bytes: %.300s", len(b), b)
	got, err := wire.UnmarshalProperties(b)
	assert.That(t, err == nil && got.Headers["x-message-key"] == "k" && got.Headers["large"] != nil &&
		got.Headers["huge"] == nil && got.Type == d.Type, "read back %v, %v", got, err)
	many := rabbit.Table{}
	for i := range 8000 {
		many[strings.Repeat("\x02", 3)+string(rune('0'+i%10))+time.Duration(i).String()] = nil
	}
	b = wire.MarshalProperties(rabbit.Delivery{Message: rabbit.Message{Headers: many}})
	assert.That(t, len(b) <= wire.MaxPropertiesBytes && strings.Contains(string(b), `"cut":true`),
		"8000 headers: %d bytes", len(b))
	for _, bad := range []string{"", "{", `{"type":5}`, `{"type":{"$bytes":"AA=="}}`, `{"headers":{"a":1}}`,
		`{"headers":{"a":{"$int9":"1"}}}`, `{"headers":{"a":{"$int64":1}}}`, `{"headers":{"a":{"$bytes":"?"}}}`,
		`{"headers":{"$?":null}}`} {
		_, err = wire.UnmarshalProperties([]byte(bad))
		assert.That(t, err != nil, "%s was read", bad)
	}
}
