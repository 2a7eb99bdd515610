package consumer_test

import (
	"slices"

	"github.com/rollbackd/rollbackd/dedup"
)

// effects is how often each key took effect.
func (w *world) effects() map[string]int {
	w.t.Helper()
	rows, err := w.db.QueryContext(w.t.Context(), "SELECT k, COUNT(*) FROM effect GROUP BY k")
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	n := map[string]int{}
	for rows.Next() {
		var k string
		var c int
		if err := rows.Scan(&k, &c); err != nil {
			w.t.Fatal(err)
		}
		n[k] = c
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// row reads the row of a key with the test's tag; status Absent when there is none.
func (w *world) row(key string) dedup.Row {
	return w.rowOf(dedup.Identity{Group: group, Tag: tag, Key: key})
}

func (w *world) rowOf(key dedup.Identity) dedup.Row {
	w.t.Helper()
	rows, err := w.records.LookUp(w.t.Context(), []dedup.Identity{key})
	if err != nil {
		w.t.Fatal(err)
	}
	return rows[key]
}

// outcomes reads rollbackd_deliveries_total of all engines of the test.
func (w *world) outcomes() map[string]int {
	w.t.Helper()
	return w.counts("rollbackd_deliveries_total")
}

// counts sums a metric with one label over all engines of the test, by the label; what is 0 is left out.
func (w *world) counts(metric string) map[string]int {
	w.t.Helper()
	w.mu.Lock()
	regs := slices.Clone(w.regs)
	w.mu.Unlock()
	n := map[string]int{}
	for _, reg := range regs {
		families, err := reg.Gather()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != metric {
				continue
			}
			for _, m := range f.GetMetric() {
				if v := int(m.GetCounter().GetValue()+m.GetGauge().GetValue()) + int(m.GetHistogram().GetSampleCount()); v != 0 {
					n[m.GetLabel()[0].GetValue()] += v
				}
			}
		}
	}
	return n
}
