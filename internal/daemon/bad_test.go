package daemon_test

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// badMessage is one that can never be applied, and what a person reads of it afterwards.
type badMessage struct {
	name   string
	body   string
	change func(m *rabbit.Message) // of the properties, if any
	reason dedup.Reason
	remark string // part of it
}

const goodBody = `{"order_sn":"of nobody","items":[{"sku_id":1,"quantity":1}]}`

func quantity(literal string) string {
	return `{"order_sn":"of nobody","items":[{"sku_id":1,"quantity":` + literal + `}]}`
}

// badBodies are malformed, each in a way of its own.
var badBodies = []badMessage{
	{name: "empty", body: "", remark: "the body is empty"},
	{name: "truncated", body: `{"order_sn":"a`, remark: "order_sn"},
	{name: "null", body: "null", remark: "object"},
	{name: "no fields", body: "{}", remark: "order_sn is missing"},
	{name: "array", body: "[]", remark: "object"},
	{name: "scalar", body: "7", remark: "object"},
	{name: "two documents", body: goodBody + goodBody, remark: "end of the body"},
	{name: "byte order mark", body: "\ufeff" + goodBody, remark: "byte order mark"},
	{name: "very deep", body: `{"order_sn":"a","x":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + "}",
		remark: "deep"},
	{name: "too large", body: `{"order_sn":"a","x":"` + strings.Repeat("x", 256<<10) + `"}`, remark: "262144"},
	{name: "invalid UTF-8", body: "{\"order_sn\":\"\xff\"}", remark: "UTF-8"},
	{name: "half a surrogate pair", body: `{"order_sn":"\ud800"}`, remark: "surrogate"},
	{name: "field twice", body: `{"order_sn":"a","order_sn":"b"}`, remark: "order_sn"},
	{name: "field twice where nobody looks", body: `{"order_sn":"a","x":[{"b":1,"\u0062":2}]}`,
		remark: `field "b" comes twice`},
	{name: "field in another case", body: `{"Order_SN":"a"}`, remark: `must be written "order_sn"`},
	{name: "empty order", body: `{"order_sn":""}`, remark: "0 bytes"},
	{name: "over-long order", body: `{"order_sn":"` + strings.Repeat("a", 65) + `"}`, remark: "65 bytes"},
	{name: "quantity 0", body: quantity("0"), remark: "quantity"},
	{name: "quantity negative", body: quantity("-1"), remark: "quantity"},
	{name: "quantity with a fraction", body: quantity("1.0"), remark: "quantity"},
	{name: "quantity with an exponent", body: quantity("1e3"), remark: "quantity"},
	{name: "quantity as text", body: quantity(`"1"`), remark: "quantity"},
	{name: "quantity null", body: quantity("null"), remark: "quantity"},
	{name: "quantity above int64", body: quantity("9223372036854775808"), remark: "quantity"},
	{name: "quantity above the limit", body: quantity("1000000001"), remark: "1000000000"},
	{name: "no items", body: `{"order_sn":"a","items":[]}`, remark: "items: is empty"},
	{name: "items null", body: `{"order_sn":"a","items":null}`, remark: "items"},
	{name: "too many items", body: manyItems(1001), remark: "more than 1000 items"},
	{name: "sku twice", body: `{"order_sn":"a","items":[{"sku_id":1,"quantity":1},{"sku_id":1,"quantity":1}]}`,
		remark: "items[1].sku_id: 1 is in items[0] already"},
	{name: "text/xml", body: "<order/>", change: func(m *rabbit.Message) { m.ContentType = "text/xml" }, remark: "object"},
	{name: "gzip", body: "\x1f\x8b\x08\x00", change: func(m *rabbit.Message) {
		m.ContentEncoding = "gzip"
	}, remark: "UTF-8"},
	{name: "markup in the body", body: `{"order_sn":"<script>alert(1)</script>","items":"=cmd"}`, remark: "items"},
}

// badNames have a good body and no name.
var badNames = []badMessage{
	{name: "empty key", body: goodBody, change: header(""), remark: "is empty"},
	{name: "over-long key", body: goodBody, change: header(strings.Repeat("k", 256)), remark: "over-long"},
	{name: "control character in the key", body: goodBody, change: header("a\x00b"), remark: "control character U+0000"},
	{name: "key of an odd type", body: goodBody, change: func(m *rabbit.Message) {
		m.Headers = rabbit.Table{"x-message-key": []any{int32(1)}}
	}, remark: "neither text nor an integer"},
	{name: "reserved tag", body: goodBody, change: func(m *rabbit.Message) {
		m.Type = "rollbackd.conflict"
	}, remark: "reserved"},
}

func header(key string) func(m *rabbit.Message) {
	return func(m *rabbit.Message) { m.Headers = rabbit.Table{"x-message-key": key} }
}

func manyItems(n int) string {
	var b bytes.Buffer
	b.WriteString(`{"order_sn":"a","items":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"sku_id":%d,"quantity":1}`, i+1)
	}
	b.WriteString("]}")
	return b.String()
}

// Given bad messages of every kind among good ones, when a daemon consumes them all together, then each bad one is a
// dead letter whose row says what is wrong with it, and every good one is applied.
func TestBadMessagesDoNotHurtTheirNeighbours(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "RETRY_DELAYS", "100ms,200ms,300ms,400ms")
	orders := w.open(500)
	good, held := w.route.Rollbacks(orders[:400]), orders[400:]

	bad := w.badMessages()
	for i, o := range held[:2] { // what only the tables know to be wrong
		o.Items[0].Quantity += 7
		bad[fmt.Sprintf("wrong quantity %d", i)] = badMessage{
			body: string(o.Body()), reason: dedup.ReasonPermanent, remark: "quantity differs from the reservation",
		}
	}
	deducted := held[2]
	w.exec("UPDATE stock_reservation SET status = 3 WHERE order_sn = ?", deducted.SN)
	w.remember()
	bad["deducted for good"] = badMessage{
		body: string(deducted.Body()), reason: dedup.ReasonPermanent, remark: "already deducted for good",
	}
	bad["unknown order"] = badMessage{body: goodBody, reason: dedup.ReasonExhausted, remark: "no reservation"}

	sent := good
	for key, m := range bad {
		p := w.route.Message(key, []byte(m.body))
		if m.change != nil {
			m.change(&p.Message)
		}
		sent = append(sent, oracle.Sent{Publishing: p, Fate: oracle.ToDie(m.reason)})
	}
	w.rng.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
	daemon := w.start()
	w.publish(sent...)
	w.publishOdd("odd properties")
	bad["odd properties"] = badMessage{reason: dedup.ReasonExhausted, remark: "no reservation"}
	w.ended(len(sent)+1, time.Minute)
	// The same key with another body, once its own is applied; and a key that differs in case only, which is another key.
	again := oracle.Sent{
		Publishing: w.route.Message(orders[0].Key(), []byte(goodBody)), Fate: oracle.ToDie(dedup.ReasonConflict),
	}
	twin := w.route.Rollback(orders[3+400])
	twin.MessageID = strings.ToUpper(orders[0].Key()) + " "
	w.publish(again, twin)
	w.ended(len(sent)+3, time.Minute)
	w.stop(daemon)

	report := w.judge(oracle.Allowance{})
	t.Logf("dead letters: %v", report.DeadByReason)
	if report.DeadLettered != len(bad)+1 || report.Applied != 401 { // and the conflict
		t.Errorf("%d dead and %d applied, want %d and 401", report.DeadLettered, report.Applied, len(bad)+1)
	}
	w.wantRemarks(bad)
}

// publishOdd publishes a rollback of an unknown order with everything that a copy must not keep, because it would close
// the channel that publishes the copy, send more copies, or let the copy vanish; and with forged headers of ours.
func (w *world) publishOdd(key string) {
	w.t.Helper()
	login, err := url.Parse(w.broker.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	forged := map[string]any{
		wire.HeaderAttempt: "4", wire.HeaderReason: []any{int32(1)}, wire.HeaderDeadAt: time.Now(),
		wire.HeaderReplays: int64(-1),
		wire.HeaderError:   strings.Repeat("e", 5000), "CC": []any{"nowhere"}, "BCC": []any{"nowhere either"},
		"x-death": "not even a list", "x-delivery-count": "many",
	}
	w.broker.Publish(w.route.Exchange, w.route.Key, stack.Message{
		MessageId: key, Body: []byte(goodBody), UserId: login.User.Username(), Expiration: "60000", Headers: forged,
		DeliveryMode: rabbit.Transient,
	})
	sent := w.route.Message(key, []byte(goodBody))
	sent.Headers = forged
	w.ledger.Record(oracle.Sent{Publishing: sent, Fate: oracle.ToDie(dedup.ReasonExhausted)}, nil)
}

// badMessages are by their message ids.
func (w *world) badMessages() map[string]badMessage {
	bad := map[string]badMessage{}
	for _, m := range badBodies {
		m.reason = dedup.ReasonMalformed
		bad[m.name] = m
	}
	for _, m := range badNames {
		m.reason = dedup.ReasonUnidentified
		bad[m.name] = m
	}
	return bad
}

// wantRemarks compares what the rows say, by message id.
func (w *world) wantRemarks(bad map[string]badMessage) {
	w.t.Helper()
	remarks := w.pairs("SELECT msg_id, CONCAT(reason, ': ', remark) FROM consumer_log WHERE consumer_status = " +
		itoa(int(dedup.Dead)))
	for key, m := range bad {
		got := remarks[key]
		w.t.Logf("%-30s %.150s", key, got)
		if !strings.HasPrefix(got, string(m.reason)+": ") || !strings.Contains(got, m.remark) {
			w.t.Errorf("the row of %q says %q, want %s and something of %q", key, got, m.reason, m.remark)
		}
	}
}
