package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestTableAlignsAndNeverSendsControlCharacters(t *testing.T) {
	tab := Table{Header: []string{"KEY", "N"}}
	tab.Add("a\x1b[31m\n\tb", 7)
	tab.Add("naïve", "")
	tab.Add("\u202eevil\x00\xff\u200b\r", -1)
	var out Page
	out.Table(tab)
	want := "KEY                         N\n" +
		`a\x1b[31m\n\tb              7` + "\n" +
		"naïve                       -\n" +
		`\u202eevil\x00\xff\u200b\r  -1` + "\n"
	assert.Is(t, out.String(), want, "table")
}

func TestJSONNeverActsOnATerminalAndAnEmptyListIsOne(t *testing.T) {
	value := map[string]string{
		"k\u009bm": "\x1b[31m \x7f \u0085 \u202eevil\u2066 \u200b \ufeff naïve 世 😀 \U000e0041 \xff \n",
	}
	var out bytes.Buffer
	require.OK(t, WriteJSON(&out, value))
	want := "{\n" + `  "k\u009bm": "\u001b[31m \u007f \u0085 \u202eevil\u2066 \u200b \ufeff naïve 世 😀 \udb40\udc41 ` +
		`\ufffd \n"` + "\n}\n"
	assert.Is(t, out.String(), want, "JSON")
	var back map[string]string
	err := json.Unmarshal(out.Bytes(), &back)
	assert.That(t, err == nil && back["k\u009bm"] == strings.ToValidUTF8(value["k\u009bm"], "\ufffd"),
		"read again it is %q, %v", back, err)
	out.Reset()
	require.OK(t, WriteJSON(&out, []Build(nil)))
	assert.Is(t, out.String(), "[]\n", "an empty list")
}
