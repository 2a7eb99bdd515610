package main

import (
	"bytes"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

func TestReportHasItsForm(t *testing.T) {
	o := outcome{
		Published: 24_007, Applied: 20_000, Absorbed: 4_000, PerSecond: 12_002,
		Dead: map[string]int{"malformed": 2, "exhausted": 3, "conflict": 2},
	}
	for file, stock := range map[string]balance{
		"testdata/report.txt":       {Now: 20_000_000, Expected: 20_000_000},
		"testdata/report-wrong.txt": {Now: 19_999_993, Expected: 20_000_000, Wrong: 2},
	} {
		var out bytes.Buffer
		o.Stock = stock
		o.write(&out)
		golden.Is(t, file, out.String())
	}
}

func TestBalanceSeesEverySKU(t *testing.T) {
	want := oracle.Stock{1: {Amount: 10}, 2: {Amount: 10}}
	swapped := oracle.Stock{1: {Amount: 11}, 2: {Amount: 9}} // the sum is right
	stranger := oracle.Stock{1: {Amount: 10}, 2: {Amount: 10}, 4: {Amount: 1}}
	assert.Is(t, compare(want, want), balance{Now: 20, Expected: 20}, "balance of what must be")
	assert.Is(t, compare(swapped, want), balance{Now: 20, Expected: 20, Wrong: 2}, "balance of two that are swapped")
	assert.Is(t, compare(stranger, want), balance{Now: 21, Expected: 20, Wrong: 1}, "balance with one from nowhere")
}

func TestNumbersHaveCommas(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		assert.Is(t, number(n), want, "number(%d)", n)
	}
}
