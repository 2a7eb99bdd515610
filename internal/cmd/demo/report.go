package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// outcome is what became of the messages.
type outcome struct {
	Orders, Published, Applied, Absorbed int
	Dead                                 map[string]int // by reason
	Stock                                balance
	Took                                 time.Duration
	PerSecond                            int
}

// balance is the stock in pieces, and how many skus are not what they must be.
type balance struct {
	Before, After, Expected int64
	Wrong                   int
}

// replayed is what the replay of the unknown orders' letters changed.
type replayed struct {
	Reserved              int64 // by the orders that became known
	Letters               int   // replayed
	Applied, AppliedAfter int
	Dead, DeadAfter       map[string]int
	Stock                 balance
}

// compare holds each sku against what it must be.
func compare(before, after, want oracle.Stock) balance {
	b := balance{Before: before.Sum().Amount, After: after.Sum().Amount, Expected: want.Sum().Amount}
	skus := maps.Clone(want)
	maps.Copy(skus, after)
	for sku := range skus {
		if after[sku].Amount != want[sku].Amount {
			b.Wrong++
		}
	}
	return b
}

// verdict says in a word whether the stock is right.
func (b balance) verdict() string {
	if b.Wrong == 0 {
		return "every sku as expected"
	}
	return fmt.Sprintf("WRONG: %d skus differ from what they must have", b.Wrong)
}

// write is the report. Its form is in testdata.
func (o outcome) write(out io.Writer) {
	lines := [][]string{{"orders", number(o.Orders)}, {"messages published", number(o.Published)},
		{"applied", number(o.Applied)}, {"duplicates absorbed", number(o.Absorbed)}, {"dead letters", number(sum(o.Dead))}}
	for _, reason := range slices.Sorted(maps.Keys(o.Dead)) {
		lines = append(lines, []string{reason, number(o.Dead[reason])})
	}
	write(out, append(lines, []string{"stock before", number(o.Stock.Before)},
		[]string{"stock after", number(o.Stock.After)}, []string{"stock expected", number(o.Stock.Expected)},
		[]string{"messages per second", number(o.PerSecond)}), o.Stock.verdict())
}

// write is the second report.
func (r replayed) write(out io.Writer) {
	lines := [][]string{{"", "before", "after"}, {"applied", number(r.Applied), number(r.AppliedAfter)},
		{"dead letters", number(sum(r.Dead)), number(sum(r.DeadAfter))}}
	for _, reason := range slices.Sorted(maps.Keys(r.Dead)) {
		lines = append(lines, []string{reason, number(r.Dead[reason]), number(r.DeadAfter[reason])})
	}
	write(out, append(lines, []string{"stock", number(r.Stock.Before), number(r.Stock.After)}),
		number(r.Stock.Expected)+" expected, "+r.Stock.verdict())
}

func write(out io.Writer, lines [][]string, stock string) {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	for _, line := range lines {
		fmt.Fprintln(t, strings.Join(line, "\t")+"\t")
	}
	must.OK(t.Flush())
	fmt.Fprintf(out, "\nstock: %s\n", stock)
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// number writes n with commas between the thousands.
func number[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
