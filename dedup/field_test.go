package dedup

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Given bodies of many writers, when rows are chosen by a field or a text of the body, then the database chooses what
// Go does, and what a person would.
func TestRowsAreChosenByWhatTheirBodiesSay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bodies := map[string]string{
		"compact":   `{"order_sn":"A-1","items":[{"sku_id":1001,"quantity":2},{"sku_id":7,"quantity":1}]}`,
		"spaced":    "{ \"order_sn\" : \"A-1\",\n \"items\" : [ { \"sku_id\" : 1001 , \"quantity\" : 2 } ] }",
		"as text":   `{"order_sn":"A-12","sku_id":"1001"}`,
		"longer":    `{"order_sn":"A-1x","sku_id":10010,"note":"1001 A-1"}`,
		"fraction":  `{"order_sn":"a-1","sku_id":1001.5}`,
		"broken":    `{"order_sn":"A-1","sku_id":1001}{`,
		"unicode":   `{"order_sn":"Größe/1"}`,
		"escaped":   `{"order_sn":"Gr\u00f6\u00dfe\/1"}`,
		"a.b":       `{"order_sn":"a.b"}`,
		"dots":      `{"order_sn":"axb"}`,
		"latin":     "{\"order_sn\":\"Gr\xf6\xdfe\"}",
		"A-1":       `{}`,
		"in a text": `{"note":"\"sku_id\":1001}"}`,
	}
	for key, body := range bodies {
		w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_body, consumer_status, consumer_times, "+
			"consumer_timestamp, created_at) VALUES (?, ?, ?, ?, 3, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
			append(keyArgs(Identity{"g", "t", key}), []byte(body))...)
	}
	sku := func(n string) []Field { return []Field{{Name: "sku_id", Value: n}} }
	order := func(sn string) []Field { return []Field{{Name: "order_sn", Value: sn, OrKey: true}} }
	for _, c := range []struct {
		f    Filter
		want []string
	}{
		{Filter{Fields: sku("1001")}, []string{"compact", "spaced", "as text", "broken"}},
		{Filter{Fields: sku("7")}, []string{"compact"}},
		{Filter{Fields: order("A-1")}, []string{"compact", "spaced", "broken", "A-1"}},
		{Filter{Fields: append(order("A-1"), sku("7")...)}, []string{"compact"}},
		{Filter{Fields: order("Größe/1")}, []string{"unicode", "escaped"}},
		{Filter{Fields: order("a.b")}, []string{"a.b"}},
		{Filter{Body: "quantity\":1"}, []string{"compact"}},
		{Filter{Body: "Gr\xf6"}, []string{"latin"}},
		{Filter{Body: "a-1"}, []string{"fraction"}},
	} {
		want := map[string]bool{}
		for _, key := range c.want {
			want[key] = true
		}
		for key, body := range bodies {
			in := strings.Contains(body, c.f.Body)
			for _, f := range c.f.Fields {
				in = in && f.In(key, []byte(body))
			}
			if in != want[key] {
				t.Errorf("%+v: Go says %v of %q", c.f, in, key)
			}
		}
		c.f.Group, c.f.Statuses = "g", []Status{Dead}
		listed, _ := w.list(c.f)
		looked, _, err := w.log.Look(t.Context(), c.f, 1000, nil)
		if err != nil {
			t.Fatal(err)
		}
		for how, rows := range map[string][]Row{"list": listed, "look": looked} {
			names := map[string]bool{}
			for _, r := range rows {
				names[r.Key] = true
			}
			if fmt.Sprint(names) != fmt.Sprint(want) {
				t.Errorf("%+v: %s chose %v, want %v", c.f, how, names, want)
			}
		}
	}
}

// Given 100,000 letters, of which twelve are of one sku, when they are looked for by it, by their orders or by a text,
// then they are found within a second.
func TestTwelveLettersOfOneSKUAreFoundWithinASecond(t *testing.T) {
	w := newWorld(t)
	const n, of = 100_000, 12
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_body, consumer_status, consumer_times, " +
		"consumer_timestamp, created_at, remark) SELECT 'g', 't', CONCAT('k', seq), CONCAT('{\"order_sn\":\"O-', seq, " +
		"'\",\"reason\":\"payment_timeout\",\"items\":[{\"sku_id\":', IF(seq % 8000 = 7777, 1001, 500000 + seq), " +
		"',\"quantity\":2}]}'), 3, 5, UTC_TIMESTAMP(6) - INTERVAL seq SECOND, UTC_TIMESTAMP(6), 'no reservation' FROM (" +
		tenToThe5 + ") AS s")
	w.exec("ANALYZE TABLE consumer_log")
	for what, c := range map[string]struct {
		f    Filter
		want int
	}{
		"sku":   {Filter{Fields: []Field{{Name: "sku_id", Value: "1001"}}}, of},
		"order": {Filter{Fields: []Field{{Name: "order_sn", Value: "O-99999", OrKey: true}}}, 1},
		"text":  {Filter{Body: `"sku_id":1001,`}, of},
	} {
		c.f.Group, c.f.Statuses = "g", []Status{Dead}
		began := time.Now()
		rows, _ := w.list(c.f)
		took := time.Since(began)
		t.Logf("%d letters among %d by %s: %v", len(rows), n, what, took.Round(time.Millisecond))
		if len(rows) != c.want || took > time.Second {
			t.Errorf("by %s: %d letters in %v, want %d within a second", what, len(rows), took, c.want)
		}
	}
}

// tenToThe5 are the numbers from 0 to 99,999, on MySQL and MariaDB.
const tenToThe5 = "SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS seq FROM " + digits + " AS a, " +
	digits + " AS b, " + digits + " AS c, " + digits + " AS e, " + digits + " AS f"

const digits = "(SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION " +
	"SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)"
