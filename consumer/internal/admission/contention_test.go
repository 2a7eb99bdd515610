package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// saying is a message of which only the body matters.
type saying struct {
	body   string
	values Values
}

func (s *saying) Said() (dedup.Identity, []byte, *Values) {
	return dedup.Identity{}, []byte(s.body), &s.values
}

func TestABodyNamesWhatStandsInItsFields(t *testing.T) {
	want := named(&saying{body: `{"sku":7,"lines":[{"qty":1}]}`})
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
		got := 0
		for _, v := range named(&saying{body: body}) {
			if slices.Contains(want, v) {
				got++
			}
		}
		assert.Is(t, got, same, "%s names of the same", body)
	}
}

// Given an obstacle, when large bodies full of different values are applied, or wait in vain, then no more is kept of
// them than has its place.
func TestWhatIsKnownOfObstaclesIsBounded(t *testing.T) {
	o := Contention[*saying]{Memory: 20 * time.Second, Size: 1000}
	var all []*saying
	for i := range 600 { // more than passed can hold
		var body strings.Builder
		body.WriteByte('[')
		for n := range 2 * maxNamed {
			fmt.Fprintf(&body, "%d,", 1_000_000+i*1000+n)
		}
		all = append(all, &saying{body: body.String()})
	}
	deep := &saying{body: strings.Repeat("[", 1<<20)}
	o.meet([]*saying{deep}, time.Second)
	assert.Is(t, len(deep.values), 1, "nothing names values")
	for _, it := range all {
		o.meet([]*saying{it}, time.Second)
		require.Is(t, len(it.values), maxNamed, "a large body names values")
		if len(o.marks) > maxMarks {
			t.Fatalf("%d values are marked, want %d at most", len(o.marks), maxMarks)
		}
	}
	o.pass(all, nil, time.Millisecond)
	assert.AtMost(t, len(o.passed), maxPassed, "values have passed")
	if all[0].values != nil {
		t.Error("what is applied still has its values")
	}
}
