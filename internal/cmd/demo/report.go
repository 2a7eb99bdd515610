package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// outcome is what became of the messages.
type outcome struct {
	Published, Applied, Absorbed int
	Dead                         map[string]int // by reason
	Stock                        balance
	PerSecond                    int
}

// balance is the stock in pieces, and how many skus are not what they must be.
type balance struct {
	Now, Expected int64
	Wrong         int
}

// count asks the log how many messages are applied, and how many are dead, by reason.
func (o *outcome) count(ctx context.Context, db *sql.DB, table string) {
	o.Applied, o.Dead = 0, map[string]int{}
	must.Rows(ctx, db, "SELECT consumer_status, COALESCE(reason, ''), COUNT(*) FROM "+table+" GROUP BY 1, 2",
		func(scan func(...any)) {
			var status dedup.Status
			var reason string
			var n int
			scan(&status, &reason, &n)
			switch status {
			case dedup.Success:
				o.Applied += n
			case dedup.Dead:
				o.Dead[reason] += n
			}
		})
}

// compare holds each sku against what it must be.
func compare(after, want oracle.Stock) balance {
	b := balance{Now: after.Sum().Amount, Expected: want.Sum().Amount}
	skus := maps.Clone(want)
	maps.Copy(skus, after)
	for sku := range skus {
		if after[sku].Amount != want[sku].Amount {
			b.Wrong++
		}
	}
	return b
}

// write is the report. Its form is in testdata.
func (o outcome) write(out io.Writer) {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	line := func(what string, n int) { fmt.Fprintf(t, "%s\t%s\t\n", what, number(n)) }
	line("orders", orders)
	line("messages published", o.Published)
	line("applied", o.Applied)
	line("duplicates absorbed", o.Absorbed)
	line("dead letters", sum(o.Dead))
	for _, reason := range slices.Sorted(maps.Keys(o.Dead)) {
		line(reason, o.Dead[reason])
	}
	line("stock", int(o.Stock.Now))
	line("stock expected", int(o.Stock.Expected))
	line("messages per second", o.PerSecond)
	must.OK(t.Flush())
	verdict := "every sku as expected"
	if o.Stock.Wrong > 0 {
		verdict = fmt.Sprintf("WRONG: %d skus differ from what they must have", o.Stock.Wrong)
	}
	fmt.Fprintf(out, "\nstock: %s\n", verdict)
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
