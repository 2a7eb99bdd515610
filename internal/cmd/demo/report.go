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
func (o outcome) write(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "orders\t%s\t\n", number(o.Orders))
	fmt.Fprintf(t, "messages published\t%s\t\n", number(o.Published))
	fmt.Fprintf(t, "applied\t%s\t\n", number(o.Applied))
	fmt.Fprintf(t, "duplicates absorbed\t%s\t\n", number(o.Absorbed))
	fmt.Fprintf(t, "dead letters\t%s\t\n", number(sum(o.Dead)))
	for _, reason := range slices.Sorted(maps.Keys(o.Dead)) {
		fmt.Fprintf(t, "%s\t%s\t\n", reason, number(o.Dead[reason]))
	}
	o.Stock.write(t)
	fmt.Fprintf(t, "messages per second\t%s\t\n", number(o.PerSecond))
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	_, err := fmt.Fprintf(out, "\nstock: %s\n", o.Stock.verdict())
	return err
}

func (b balance) write(t io.Writer) {
	fmt.Fprintf(t, "stock before\t%s\t\n", number(b.Before))
	fmt.Fprintf(t, "stock after\t%s\t\n", number(b.After))
	fmt.Fprintf(t, "stock expected\t%s\t\n", number(b.Expected))
}

// write is the second report.
func (r replayed) write(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tbefore\tafter\t\n")
	fmt.Fprintf(t, "applied\t%s\t%s\t\n", number(r.Applied), number(r.AppliedAfter))
	fmt.Fprintf(t, "dead letters\t%s\t%s\t\n", number(sum(r.Dead)), number(sum(r.DeadAfter)))
	for _, reason := range slices.Sorted(maps.Keys(r.Dead)) {
		fmt.Fprintf(t, "%s\t%s\t%s\t\n", reason, number(r.Dead[reason]), number(r.DeadAfter[reason]))
	}
	fmt.Fprintf(t, "stock\t%s\t%s\t\n", number(r.Stock.Before), number(r.Stock.After))
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	_, err := fmt.Fprintf(out, "\nstock: %s expected, %s\n", number(r.Stock.Expected), r.Stock.verdict())
	return err
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// number writes n with commas between the thousands.
func number[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	var groups []string
	for len(digits) > 3 {
		groups = append(groups, digits[len(digits)-3:])
		digits = digits[:len(digits)-3]
	}
	groups = append(groups, digits)
	slices.Reverse(groups)
	return sign + strings.Join(groups, ",")
}
