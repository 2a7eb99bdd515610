package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// exportPage is how many letters are in memory at a time: at most 32 MiB.
const exportPage = 100

// Export writes the letters that f chooses to w, the latest first, as lines of NDJSON, and says how many. It reads the
// consumer log page by page and never touches the queue. A letter that dies or ends meanwhile may be missing.
func (l *Letters) Export(ctx context.Context, f Filter, w io.Writer) (n int, err error) {
	q := f.query(l.o.Group)
	q.Bodies = true
	chosen := f.printed()
	for {
		q.Limit = exportPage
		if f.Limit > 0 {
			q.Limit = min(q.Limit, f.Limit-n)
		}
		rows, next, err := l.o.Records.List(ctx, q)
		if err != nil {
			return n, fmt.Errorf("export dead letters: %w", err)
		}
		for _, row := range rows {
			if chosen != nil && !chosen(row) {
				continue
			}
			ln, err := l.find.line(row)
			if err != nil {
				return n, fmt.Errorf("export dead letters: %w", err)
			}
			text, err := json.Marshal(ln)
			if err == nil {
				_, err = w.Write(append(text, '\n'))
			}
			if err != nil {
				return n, fmt.Errorf("export dead letters: write %v: %w", row.Identity, err)
			}
			n++
		}
		if next == "" || f.Limit > 0 && n >= f.Limit {
			return n, nil
		}
		q.After = next
	}
}
