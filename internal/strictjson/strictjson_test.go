package strictjson_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/strictjson"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

// documents are bodies and why they are refused; "" means that they are not.
var documents = []struct{ body, why string }{
	{`{}`, ""}, {`[]`, ""}, {`""`, ""}, {"true", ""}, {"null", ""}, {"-0", ""}, {"-1.50e+07", ""},
	{" \t\r\n{ \"a\" : [ 1 , 2 ] , \"b\" : { } } \n", ""},
	{`"\"\\\/\b\f\n\r\t\u00e9\u20AC\ud83d\ude00\u0000\uffff"`, ""},
	{"\"訂單 é 😀 \u007f\ufffd\"", ""},
	{`{"a":1,"A":1,"a ":1,"á":1}`, ""},
	{`[{"a":1},{"a":1},{"b":{"a":1},"a":2}]`, ""}, // the same name, in other objects
	{nested(strictjson.MaxDepth), ""},
	{`["` + strings.Repeat(`[{\"`, strictjson.MaxDepth) + `"]`, ""},
	{`"` + strings.Repeat("x", strictjson.MaxBytes-2) + `"`, ""},

	{"", "the body is empty"},
	{" \n", "byte 2: want a value, found the end"},
	{"\ufeff{}", "the body begins with a byte order mark"},
	{"\"\xff\"", "the body is not UTF-8: byte 1"},
	{"\"\xed\xa0\x80\"", "the body is not UTF-8: byte 1"}, // a surrogate, encoded
	{`"` + strings.Repeat("x", strictjson.MaxBytes-1) + `"`, "the body has 262145 bytes, may have 262144"},
	{nested(strictjson.MaxDepth + 1), "byte 1000: nested deeper than 1000"},
	{strings.Repeat(`{"":`, strictjson.MaxDepth+1), "byte 4000: nested deeper than 1000"},

	{`{"a":1,"a":1}`, `byte 7: field "a" comes twice`},
	{`{"\u0061":1,"a":1}`, `byte 12: field "a" comes twice`},
	{`{"\ud83d\ude00":1,"😀":1}`, `byte 18: field "😀" comes twice`},
	{`[{"x":[{"b":1,"a":{},"b":2}]}]`, `byte 21: field "b" comes twice`},
	{`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"a":1}`, `byte 55: field "a" comes twice`},
	{`{"` + strings.Repeat("n", 90) + `":1,"` + strings.Repeat("n", 90) + `":1}`, `byte 96: field "` + strings.Repeat("n",
		40) + `…" comes twice`},

	{`"\ud800\n"`, "byte 1: half a surrogate pair"},
	{`"\ud800\ud800\udc00"`, "byte 1: half a surrogate pair"},
	{`{"x":{"y":["\udc00\ud800"]}}`, "byte 12: half a surrogate pair"},

	{`{} {}`, "byte 3: want the end of the body after the message, found '{'"},
	{"{}\x00", `byte 2: want the end of the body after the message, found '\x00'`},
	{`01`, "byte 1: want the end of the body after the message, found '1'"},
	{`{"a":1,}`, "byte 6: invalid character ',' at start of value"},
	{`{"a":`, "byte 5: want a value, found the end"},
	{`{"a":1/**/}`, "byte 6: invalid character '/' after object value (expecting ',' or '}')"},
	{`[1`, "byte 2: want more, found the end"},
	{`["a`, "byte 3: want the end of a string, found the end"},
	{"\"a\n\"", "byte 2: invalid character '\\n' in string (expecting non-control character)"},
	{`"\x` + strings.Repeat("y", 90) + `"`, "byte 1: invalid escape sequence `\\x` in string"},
}

func TestABodyIsRefusedForItsOwnReason(t *testing.T) {
	for _, d := range documents {
		got := ""
		if err := strictjson.Check([]byte(d.body)); err != nil {
			got = err.Error()
		}
		assert.Is(t, got, d.why, "%.60s", d.body)
		if _, err := strictjson.Lookup([]byte(d.body), []string{"nothing"}); (err != nil) != (d.why != "") {
			t.Errorf("%.60s: a pointer finds it %v, without one it is %q", d.body, err, d.why)
		}
		assert.That(t, d.why != "" || json.Valid([]byte(d.body)), "%.60s is accepted, and no JSON", d.body)
	}
}

func TestLookupReturnsTheValueAsItIsWritten(t *testing.T) {
	const body = ` {"a":{"b":[1, {"c":-1.50} ,"x\u0041"]},"\u00e4":"\/","a/b":{"~":null,"":[ ]},"0":false} `
	for _, test := range []struct{ pointer, want string }{
		{"", strings.TrimSpace(body)},
		{"/a/b/0", "1"}, {"/a/b/1", `{"c":-1.50}`}, {"/a/b/1/c", "-1.50"}, {"/a/b/2", `"x\u0041"`},
		{"/ä", `"\/"`}, {"/a~1b/~0", "null"}, {"/a~1b/", "[ ]"}, {"/0", "false"},
		{"/A", ""}, {"/a/b/3", ""}, {"/a/b/01", ""}, {"/a/b/+1", ""}, {"/a/b/-", ""}, {"/a/b/-1", ""}, {"/a/b/0/0", ""},
		{"/ä/", ""},
	} {
		got, err := strictjson.Lookup([]byte(body), steps(test.pointer))
		assert.That(t, err == nil && string(got) == test.want, "%s: %q, %v; want %q", test.pointer, got, err, test.want)
	}
}

// A body of the greatest size is read or refused with work that its size explains: about 0.1 s of one processor under
// the race detector, where work that grows with the square of the size takes minutes. Waiting for a processor does not
// count.
func TestALargeBodyIsNotSlow(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	many := func(format string) string {
		var b bytes.Buffer
		for i := 0; b.Len() < strictjson.MaxBytes-100; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, body := range map[string]string{
		"names":          `{` + many(`"%d":1,`) + `"x":1}`,
		"escaped names":  `{` + many(`"\u0061%d":1,`) + `"x":1}`,
		"objects":        `[` + many(`{"0":0,"1":1,"2":2,"3":3,"4":4,"5":5,"6":6,"7":7,"8":%d},`) + `1]`,
		"elements":       `[` + many(`%d,`) + `1]`,
		"escapes":        `"` + strings.Repeat(`\u0041`, strictjson.MaxBytes/6-10) + `"`,
		"depth":          nested(strictjson.MaxDepth),
		"depth, refused": nested(strictjson.MaxBytes / 2),
	} {
		begin := processorTime(t)
		_, err := strictjson.Lookup([]byte(body), []string{"x"})
		if took := processorTime(t) - begin; took > 3*time.Second || err != nil && name != "depth, refused" {
			t.Errorf("%s: %d bytes took %v, %v", name, len(body), took, err)
		}
	}
}

// processorTime is what the calling thread has had of a processor.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	const thread = 1 // RUSAGE_THREAD, getrusage(2)
	var used syscall.Rusage
	require.OK(t, syscall.Getrusage(thread, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// steps splits a pointer with its first slash; "" points to the whole.
func steps(pointer string) []string {
	if pointer == "" {
		return nil
	}
	steps, _ := strictjson.Steps(pointer[1:])
	return steps
}

// FuzzScanner holds the scanner against encoding/json: it takes nothing that encoding/json refuses, finds at a pointer
// what stands there in the decoded document, and takes what encoding/json writes, within the limits.
func FuzzScanner(f *testing.F) {
	for _, d := range documents {
		if len(d.body) < 1000 {
			f.Add([]byte(d.body), "/a/0")
		}
	}
	f.Add([]byte(`{"a":[{"b":"\ud83d\ude00"}]}`), "/a/0/b")
	f.Add([]byte("{{"), "0")
	f.Fuzz(func(t *testing.T, body []byte, pointer string) {
		path := steps("/" + pointer)
		value, err := strictjson.Lookup(body, path)
		check := strictjson.Check(body)
		require.That(t, fmt.Sprint(check) == fmt.Sprint(err), "%v with a pointer, %v without", err, check)
		var all any
		decodeErr := unmarshal(body, &all)
		if err != nil {
			assert.AtMost(t, len(err.Error()), 300, "bytes of the error")
			if decodeErr == nil {
				takesWhatIsWritten(t, all)
			}
			return
		}
		require.That(t, decodeErr == nil, "accepted what encoding/json refuses: %v", decodeErr)
		if decoded, err := strictjson.Decode(body); err != nil || !reflect.DeepEqual(decoded, all) {
			t.Fatalf("decoded %v, %v, encoding/json %v", decoded, err, all)
		}
		want, found := strictjson.At(all, path)
		require.Is(t, found, (value != nil), "found %q, encoding/json %v", value, want)
		var got any
		require.That(t, !found || unmarshal(value, &got) == nil && reflect.DeepEqual(got, want),
			"found %q, encoding/json %v", value, want)
		if text, ok := want.(string); ok {
			if unquoted, err := strictjson.Unquote(value); string(unquoted) != text || err != nil {
				t.Fatalf("unquoted %q as %q, %v", value, unquoted, err)
			}
		}
	})
}

// takesWhatIsWritten: encoding/json writes each name once, valid UTF-8 and whole surrogate pairs.
func takesWhatIsWritten(t *testing.T, v any) {
	body := require.Get(json.Marshal(v))(t)
	err := strictjson.Check(body)
	require.That(t, err == nil || len(body) > strictjson.MaxBytes || strings.Contains(err.Error(), "nested deeper"),
		"refused %q: %v", body, err)
}

func unmarshal(body []byte, to *any) error {
	if !json.Valid(body) { // a Decoder takes trailing data
		return strconv.ErrSyntax
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	return d.Decode(to)
}
