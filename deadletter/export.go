package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/rollbackd/rollbackd/dedup"
)

// exportPage is how many letters are looked up at a time, without their bodies.
const exportPage = 100

// Export writes the letters that f chooses to w, the latest first, as lines of NDJSON, and says how many. It reads the
// consumer log letter by letter, so that no more than one is in memory and a slow w holds no connection, and never
// touches the queue. A letter that dies or ends meanwhile may be missing.
func (l *Letters) Export(ctx context.Context, f Filter, w io.Writer) (n int, err error) {
	q := f.query(l.o.Group)
	for {
		q.Limit = exportPage
		if f.Limit > 0 {
			q.Limit = min(q.Limit, f.Limit-n)
		}
		rows, next, err := l.o.Records.Look(ctx, q, 0, f.printed())
		if err != nil {
			return n, fmt.Errorf("export dead letters: %w", err)
		}
		for _, row := range rows {
			wrote, err := l.export(ctx, row, w)
			if err != nil {
				return n, fmt.Errorf("export dead letters: %w", err)
			}
			if wrote {
				n++
			}
		}
		if next == "" || f.Limit > 0 && n >= f.Limit {
			return n, nil
		}
		q.After = next
	}
}

// export writes the letter of a row that was listed, if it is that yet.
func (l *Letters) export(ctx context.Context, listed dedup.Row, w io.Writer) (wrote bool, err error) {
	row, err := l.o.Records.Read(ctx, listed.Identity)
	if err != nil || row.Version != listed.Version {
		return false, err
	}
	ln, err := l.line(row)
	if err != nil {
		return false, err
	}
	if err := json.NewEncoder(w).Encode(ln); err != nil {
		return false, fmt.Errorf("write %v: %w", row.Identity, err)
	}
	return true, nil
}
