package chaos

import (
	"bytes"
	_ "embed"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

const (
	leastCalm = 20 * time.Second // after a fault and its aftermath, until a look
	warmUp    = 5                // of so many looks the first is left out of what grows
)

// series is a figure by the minute.
type series struct {
	Name   string
	Most   float64 // that it may grow by in an hour; 0: it is only shown
	At     []float64
	Values []float64
}

// soak is what is watched of a long run: in it daemon 0 and relay 0 are never ended.
type soak struct {
	w      *world
	all    []*series
	looked time.Time
}

// look waits until all is well after a fault and then for the rest of a minute, and adds a value to each series. The
// latency is that of the messages that are published in this calm.
func (k *soak) look() {
	w := k.w
	if w.o.Soak == "" {
		return
	}
	w.recover("before a look")
	w.until(time.Minute, func() bool { n, err := w.depth(queue); return err == nil && n < w.o.Rate })
	calm := time.Now()
	w.load.timed(map[string]time.Time{})
	_ = w.pass(max(leastCalm, time.Minute-time.Since(k.looked))) // who asks next sees the end of the run
	took := k.applied(calm, w.load.timed(nil))
	k.looked = time.Now()
	if len(took) > 0 {
		k.add("latency p99, ms", 10, took[len(took)*99/100])
	}
	for _, s := range []*slot{w.fleet.slots[0], w.fleet.relays[0]} {
		now := must.Get(s.present(false).Metrics(w.ctx))
		k.add(s.name+": resident memory, MiB", 8, now["process_resident_memory_bytes"]/(1<<20))
		k.add(s.name+": goroutines", 4, now["go_goroutines"])
		k.add(s.name+": file handles", 4, now["process_open_fds"])
	}
	const size = "SELECT CAST(SUM(%s) / 1048576 AS DOUBLE) FROM information_schema.tables WHERE table_schema = DATABASE()"
	k.add("tables, MiB", 0, must.Value[float64](w.ctx, w.db, fmt.Sprintf(size, "data_length")))
	k.add("indexes, MiB", 0, must.Value[float64](w.ctx, w.db, fmt.Sprintf(size, "index_length")))
	k.add("undo history, transactions", 0, must.Value[float64](w.ctx, w.db,
		"SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"))
	k.write()
}

func (k *soak) add(name string, most, value float64) {
	at := slices.IndexFunc(k.all, func(s *series) bool { return s.Name == name })
	if at < 0 {
		at, k.all = len(k.all), append(k.all, &series{Name: name, Most: most})
	}
	s := k.all[at]
	s.At, s.Values = append(s.At, k.looked.Sub(k.w.start).Minutes()), append(s.Values, value)
}

// applied waits until the messages that were published in the calm are applied, and says how long each took until its
// row was written, in milliseconds.
func (k *soak) applied(from time.Time, at map[string]time.Time) (took []float64) {
	all := func() bool {
		_, took = k.w.pass(time.Second), nil // to ask is work too
		must.Rows(k.w.ctx, k.w.db, "SELECT msg_key, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', consumer_timestamp) FROM "+
			"consumer_log WHERE consumer_status = 1 AND consumer_timestamp >= ?", func(scan func(...any)) {
			var key string
			var micros int64
			scan(&key, &micros)
			if published, ok := at[key]; ok {
				took = append(took, time.UnixMicro(micros).Sub(published).Seconds()*1000)
			}
		}, from.UTC().Format("2006-01-02 15:04:05.000000"))
		return len(took) == len(at)
	}
	if !k.w.until(time.Minute, all) && k.w.ctx.Err() == nil {
		k.w.violation("of %d messages that were published while all was well %d were applied a minute later", len(at),
			len(took))
	}
	slices.Sort(took)
	return took
}

// growth is how much more a figure is in the last third after the warm-up than in the first, in an hour: by the means,
// and the least that is beyond doubt, three standard errors less.
func (s *series) growth() (slope, least float64) {
	from := (len(s.At) + warmUp - 1) / warmUp
	n := (len(s.At) - from) / 3
	if n < 2 {
		return 0, 0
	}
	mean := func(of []float64) (m, doubt float64) {
		for _, v := range of {
			m += v / float64(n)
		}
		for _, v := range of {
			doubt += (v - m) * (v - m) / float64(n*(n-1))
		}
		return m, doubt
	}
	first, doubtful := mean(s.Values[from : from+n])
	last, too := mean(s.Values[len(s.Values)-n:])
	hours := (s.At[len(s.At)-n] - s.At[from]) / 60
	return (last - first) / hours, (last - first - 3*math.Sqrt(doubtful+too)) / hours
}

// judge says of each series that grows too fast that it does.
func (k *soak) judge() {
	if k.w.o.Soak == "" {
		return
	}
	fmt.Fprint(k.w.o.Out, "\n"+k.write())
	for _, s := range k.all {
		if slope, least := s.growth(); s.Most > 0 && least > s.Most {
			k.w.violation("%s grows by %.1f an hour, by %.1f beyond doubt: %v may be", s.Name, slope, least, s.Most)
		}
	}
}

// write writes table and chart of what there is so far, and returns the table.
func (k *soak) write() string {
	var table strings.Builder
	fmt.Fprint(&table, "| | first | least | most | last | growth an hour | of it certain | may be, 0: any |\n",
		"|---|---|---|---|---|---|---|---|\n")
	for _, s := range k.all {
		slope, least := s.growth()
		fmt.Fprintf(&table, "| %s | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %g |\n", s.Name, s.Values[0],
			slices.Min(s.Values), slices.Max(s.Values), s.Values[len(s.Values)-1], slope, least, s.Most)
	}
	must.OK(os.WriteFile(k.w.o.Soak+".md", []byte(table.String()), 0o644))
	must.OK(os.WriteFile(k.w.o.Soak+".svg", k.chart(), 0o644))
	return table.String()
}

//go:embed soak.svg.tmpl
var soakText string

// chart draws each series in a field of its own, from zero up.
func (k *soak) chart() []byte {
	const columns, width, height = 2, 380, 170 // of a field, in pixels, which has margins of its own
	var fields []map[string]any
	for i, s := range k.all {
		line, top, last := "", slices.Max(s.Values), s.At[len(s.At)-1]
		for j, v := range s.Values {
			line += fmt.Sprintf("%.1f,%.1f ", 50+310*s.At[j]/last, 130-100*v/max(top, 1))
		}
		fields = append(fields, map[string]any{"Name": s.Name, "X": i % columns * width, "Y": i / columns * height,
			"Line": line, "Top": top, "Last": last})
	}
	var b bytes.Buffer
	must.OK(template.Must(template.New("soak.svg").Parse(soakText)).Execute(&b, map[string]any{
		"Fields": fields, "Width": columns * width, "Height": (len(fields) + 1) / columns * height,
	}))
	return b.Bytes()
}
