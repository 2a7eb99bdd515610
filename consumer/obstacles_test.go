package consumer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func naming(body string) *item { return &item{msg: Message{Body: []byte(body)}} }

func TestABodyNamesWhatStandsInItsFields(t *testing.T) {
	want := naming(`{"sku":7,"lines":[{"qty":1}]}`)
	want.read()
	for body, same := range map[string]int{
		`{"sku":7,"lines":[{"qty":1}]}`:    3, // the message itself is the first, of all here
		`{"lines":[[],{"qty":1}],"sku":7}`: 3,
		`{"sku":7,"lines":[{"qty":2}]}`:    2,
		`{"qty":7,"sku":1}`:                1,
		`{"sku":7,"lines":[{"qty":1`:       3, // as far as it can be read
		`{"sku":7,]`:                       2,
		`{"sku":null,"a":true,"b":{}}`:     1,
		`no JSON`:                          1,
		``:                                 1,
	} {
		it := naming(body)
		it.read()
		got := 0
		for _, v := range it.named {
			if slices.Contains(want.named, v) {
				got++
			}
		}
		if got != same {
			t.Errorf("%s names %d of the same, want %d", body, got, same)
		}
	}
}

// Given an obstacle, when large bodies full of different values are applied, or wait in vain, then no more is kept of
// them than has its place.
func TestWhatIsKnownOfObstaclesIsBounded(t *testing.T) {
	o := newContention(Config{
		BatchSize: 1000, HandlerTimeout: 10 * time.Second, RetryDelays: []time.Duration{time.Second},
	})
	var all []*item
	for i := range 600 { // more than passed can hold
		var body strings.Builder
		body.WriteByte('[')
		for n := range 2 * maxNamed {
			fmt.Fprintf(&body, "%d,", 1_000_000+i*1000+n)
		}
		all = append(all, naming(body.String()))
	}
	deep := naming(strings.Repeat("[", MaxBody))
	o.meet([]*item{deep}, time.Second)
	if n := len(deep.named); n != 1 {
		t.Errorf("nothing names %d values, want itself", n)
	}
	for _, it := range all {
		o.meet([]*item{it}, time.Second)
		if len(it.named) != maxNamed {
			t.Fatalf("a large body names %d values, want %d", len(it.named), maxNamed)
		}
		if len(o.marks) > maxMarks {
			t.Fatalf("%d values are marked, want %d at most", len(o.marks), maxMarks)
		}
	}
	o.pass(all, nil, time.Millisecond)
	if len(o.passed) > maxPassed {
		t.Errorf("%d values have passed, want %d at most", len(o.passed), maxPassed)
	}
	if all[0].named != nil {
		t.Error("what is applied still has its values")
	}
}
