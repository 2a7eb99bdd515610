package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

func TestReportsHaveTheirForm(t *testing.T) {
	dead := map[string]int{"malformed": 2, "exhausted": 3, "conflict": 2}
	var good, wrong, again bytes.Buffer
	o := outcome{
		Orders: 20_000, Published: 24_007, Applied: 20_000, Absorbed: 4_000, Dead: dead,
		Stock: balance{Before: 19_894_109, After: 20_000_000, Expected: 20_000_000}, Took: 2 * time.Second, PerSecond: 12_002,
	}
	o.write(&good)
	golden.Is(t, "testdata/report.txt", good.String())

	o.Stock.After, o.Stock.Wrong = 19_999_993, 2
	o.write(&wrong)
	golden.Is(t, "testdata/report-wrong.txt", wrong.String())

	r := replayed{
		Reserved: 10, Letters: 3, Applied: 20_000, AppliedAfter: 20_003, Dead: dead, DeadAfter: map[string]int{"malformed": 2,
			"conflict": 2},
		Stock: balance{Before: 19_999_990, After: 20_000_000, Expected: 20_000_000},
	}
	r.write(&again)
	golden.Is(t, "testdata/replay.txt", again.String())
}

func TestBalanceSeesEverySKU(t *testing.T) {
	want := oracle.Stock{1: {Amount: 10}, 2: {Amount: 10}, 3: {Amount: 10}}
	after := oracle.Stock{1: {Amount: 11}, 2: {Amount: 9}, 3: {Amount: 10}} // the sum is right
	if got := compare(after, after, want); got.Wrong != 2 || got.After != got.Expected {
		t.Errorf("balance is %+v, want 2 skus wrong", got)
	}
	assert.Is(t, compare(after, want, want).Wrong, 0, "balance")
	if got := compare(after, oracle.Stock{1: {Amount: 10}, 2: {Amount: 10}, 3: {Amount: 10}, 4: {Amount: 1}},
		want); got.Wrong != 1 {
		t.Errorf("balance is %+v, want the sku that came from nowhere", got)
	}
}

func TestNumbersHaveCommas(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		assert.Is(t, number(n), want, "number(%d)", n)
	}
}

func TestProgressIsOneLine(t *testing.T) {
	got := seen{published: 24_007, applied: 9_000, duplicates: 1_000, letters: 5}.line(2 * time.Second)
	want := "  2.0 s   published 24,007   applied 9,000   duplicates 1,000   dead letters 5   5,002/s"
	assert.Is(t, got, want, "line")
}
