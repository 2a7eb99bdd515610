package main

import (
	"bytes"
	"testing"
)

func TestTableAlignsAndNeverSendsControlCharacters(t *testing.T) {
	tab := table{header: []string{"KEY", "N"}}
	tab.add("a\x1b[31m\n\tb", 7)
	tab.add("naïve", "")
	tab.add("\u202eevil\x00\xff\u200b\r", -1)
	var out bytes.Buffer
	if err := writeTable(&out, tab); err != nil {
		t.Fatal(err)
	}
	want := "KEY                         N\n" +
		`a\x1b[31m\n\tb              7` + "\n" +
		"naïve                       -\n" +
		`\u202eevil\x00\xff\u200b\r  -1` + "\n"
	if got := out.String(); got != want {
		t.Errorf("table is\n%s\nwant\n%s", got, want)
	}
}

func TestEmptyListIsAnEmptyJSONList(t *testing.T) {
	var out bytes.Buffer
	var none []build
	if err := (&output{chosen: outputJSON}).render(&out, none, table{}); err != nil || out.String() != "[]\n" {
		t.Errorf("render = %q, %v; want an empty list", out.String(), err)
	}
}
