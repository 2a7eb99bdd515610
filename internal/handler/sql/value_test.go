package sql

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given columns of every kind, when a message's values are written, then they arrive as the message has them.
func TestValuesKeepWhatTheMessageSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE v (
		n INT AUTO_INCREMENT PRIMARY KEY, i BIGINT, d DECIMAL(65, 20), s VARCHAR(200), b INT) CHARSET utf8mb4`)
	f := w.parse(`-- for each /list
INSERT INTO v (i, d, s, b) VALUES (:i, :d, :s, :{flags/0})`)
	h := New(f)
	body := `{"i":null,"d":1,"flags":[true],"list":[
		{"i":9223372036854775807,"d":12345678901234567890123456789012345678901234.12345678901234567890,"s":"訂單 é 😀"},
		{"i":-9223372036854775808,"d":-1.50,"s":"'\"\\?:x%_--\u0000","flags":[false]},
		{"d":1.5e3,"s":null},
		{"d":-12e-4,"s":""},
		{"i":0,"d":1E0,"s":"007"}]}`
	require.OK(t, w.handle(h, messages(body)[0]))
	w.want("integers", "SELECT i FROM v ORDER BY n", "9223372036854775807\n-9223372036854775808\nNULL\nNULL\n0")
	w.want("decimals", "SELECT d FROM v ORDER BY n",
		"12345678901234567890123456789012345678901234.12345678901234567890\n-1.50000000000000000000\n"+
			"1500.00000000000000000000\n-0.00120000000000000000\n1.00000000000000000000")
	w.want("strings", "SELECT s FROM v ORDER BY n", "訂單 é 😀\n'\"\\?:x%_--\x00\nNULL\n\n007")
	w.want("booleans, the item's before the message's", "SELECT b FROM v ORDER BY n", "1\n0\n1\n1\n1")
}

// Given a DECIMAL column, when a decimal is added to it, then the sum is exact: no float comes between.
func TestDecimalsAreAddedExactly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE v (d DECIMAL(30, 2)); INSERT INTO v VALUES (9007199254740993.01)`)
	h := New(w.parse("UPDATE v SET d = d - :x"))
	require.OK(t, w.handle(h, messages(`{"x":-9007199254740993.02}`)[0]))
	w.want("the sum", "SELECT d FROM v", "18014398509481986.03")
}

func TestExactWritesNumbersWithoutExponent(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]number{
		"0": "0", "-0": "-0", "12.50": "12.50", "1e0": "1", "1e3": "1000", "1.5e1": "15", "1.25e1": "12.5", "-1.5E+1": "-15",
		"5e-1": "0.5", "12.5e-1": "1.25", "12.5e-3": "0.0125", "0e9": "0", "100e-2": "1.00",
		"1e65": "", "1e999999999999": "", "1e-66": "", strings.Repeat("9", 68): "",
	} {
		got, err := exact(in)
		assert.That(t, got == want && (err == nil) == (want != ""), "exact(%s) = %q, %v, want %q", in, got, err, want)
	}
}

// A message that lacks what a statement names is refused before any transaction, in words for who finds it.
func TestMessagesThatLackAFieldAreMalformed(t *testing.T) {
	t.Parallel()
	f := require.Get(Parse("f.sql", `UPDATE t SET a = :{/buyer/id} WHERE b = :order;
-- for each /items
UPDATE t SET a = a + :n, c = :shop`))(t)
	whole := `{"buyer":{"id":1},"order":"a","shop":1,"items":[{"n":1}]}`
	for _, test := range []struct{ part, by, want string }{
		{"", "", ""},
		{`"id":1`, `"id":null`, ""},
		{`[{"n":1}]`, `[]`, ""},
		{`"shop":1,`, "", "items[0].shop is missing, and so is shop"},
		{`"order":"a"`, `"Order":"a"`, "order is missing"},
		{`"id":1`, "", "buyer.id is missing"},
		{`{"id":1}`, `7`, "buyer.id is missing"},
		{`"a"`, `["a"]`, "order is an object or a list, where a value is wanted"},
		{`"items"`, `"item"`, "items is missing"},
		{`[{"n":1}]`, `{"n":1}`, "items is not a list"},
		{`[{"n":1}]`, `[{"n":1},{}]`, "items[1].n is missing, and so is n"},
		{`[{"n":1}]`, `[{"n":1},4]`, "items[1].n is missing, and so is n"},
		{`{"n":1}`, `{"n":{"n":1}}`, "items[0].n is an object or a list, where a value is wanted"},
		{`{"n":1}`, `{"n":1e999}`, "items[0].n: the number has more than 65 digits"},
		{`{"n":1}`, `{"n":1,"n":2}`, `byte 55: field "n" comes twice`},
		{`{"n":1}`, `{"n":1}` + strings.Repeat(`,{"n":1}`, MaxItems), "items has more than 1000 items"},
		{`,"items":[{"n":1}]}`, "", "byte 38: want more, found the end"},
	} {
		body := strings.Replace(whole, test.part, test.by, 1)
		_, err := f.decode([]byte(body))
		assert.Is(t, errorText(err), test.want, "%.90s", body)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
