package legacyimport

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Options say what is taken over, and how. Records, DB, From and Group are required.
type Options struct {
	Records *dedup.Log
	// DB is the pool through which the old table is read: the log's own.
	DB *sql.DB
	// From is the old table, TABLE or DATABASE.TABLE, on the same server.
	From string
	// Group is rollbackd's. Rows of the old group of that name are taken over, and those of each old group that Groups
	// gives a new name. Tags gives new names to old tags; others keep theirs.
	Group        string
	Groups, Tags map[string]string
	// Zone is that of times which stand in the table without one (DATETIME); nil: UTC.
	Zone *time.Location
	// Retention is how long the log keeps a success; 0: for ever. It is reported which rows are older.
	Retention time.Duration
	// NoBodyHash takes no hash of the bodies: what the old consumer wrote there is not, byte for byte, what RabbitMQ
	// delivers.
	NoBodyHash bool
	// LastPass says that the old consumer has ended. Such a pass begins at the first row in any case, and finds out if
	// somebody writes all the same.
	LastPass bool
	// DryRun changes nothing, and counts what a pass from the first row would do.
	DryRun bool
	// NoWait leaves out the pauses, each as long as the page before it took.
	NoWait bool
	// By is who takes over, for the story of what is filed as dead.
	By string
	// Remake makes the properties with which a message has an identity, for a row that was left open: with them and its
	// body it can be sent again. Nil, or nil as its result: it cannot be.
	Remake func(id dedup.Identity, body []byte, messageID string) []byte
	// Progress, if set, is called after every page, by the goroutine that called Run.
	Progress func(Progress)

	page  int           // instead of pageRows and lookRows
	quiet time.Duration // instead of quiet
}

// Progress is how far a pass has come.
type Progress struct {
	// Looking: rows are compared, before or after a last pass, and nothing is written.
	Looking bool
	Rows    int   // read, since the first row
	Written int   // of them written
	About   int64 // how many there are, as the server estimates; 0: not known
}

// ErrNotLast says that a last pass was none, because the old consumer has not ended, or its times were misread.
var ErrNotLast = errors.New("this was no last pass")

// tries is how often a page is begun anew that met somebody else's rows, or an answer that was lost.
const tries = 8

// longestRest bounds the pause behind a page.
const longestRest = 5 * time.Second

// state is what the note of the waypoint holds. It is good for the pass with these options only.
type state struct {
	From    string   `json:"from"`    // the old table, for people
	Into    string   `json:"into"`    // the log's table
	Group   string   `json:"group"`   // rollbackd's
	Last    bool     `json:"last"`    // it is a last pass, and when it is done, it was one
	Options string   `json:"options"` // digest of what the pass was asked for, and of the primary key
	Done    bool     `json:"done"`    // the last row was seen
	At      [][]byte `json:"at"`      // primary key of the last row that is done
	Sums
	Asked []string `json:"asked"`          // the old groups that are taken over
	Seen  *look    `json:"seen,omitempty"` // the table behind a last pass
}

// pass is one Run.
type pass struct {
	Options
	shape    *shape
	waypoint dedup.Waypoint
	state    state
	report   Report
	marks    []uint64  // of a last pass: what the table held before it
	looked   time.Time // then
}

// Run makes one pass, or goes on with one that was cut off: of the same options, and no last one, which begins anew. It
// may be killed at any point. Of two at once on the same table one ends with [dedup.ErrOvertaken], and has written
// nothing that the other would not.
//
// The report is good beside an error: what it counts as written is. An error that is none of ErrTable, ErrNotLast or
// dedup.ErrOvertaken is that of a server.
func Run(ctx context.Context, o Options) (Report, error) {
	o.quiet, o.Zone = cmp.Or(o.quiet, quiet), cmp.Or(o.Zone, time.UTC)
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	p := &pass{Options: o, report: Report{LastPass: o.LastPass, DryRun: o.DryRun, Named: []Named{}}}
	var err error
	for _, step := range []func(context.Context) error{p.begin, p.lookBefore, p.through, p.lookBehind, p.end} {
		if err = step(ctx); err != nil {
			err = fmt.Errorf("take over %s: %w", o.From, err)
			break
		}
	}
	p.report.Sums = p.state.Sums
	if p.shape != nil {
		p.report.From, p.report.Notes = p.shape.name(), append([]string{}, p.shape.notes...)
	}
	return p.report, err
}

// through takes over what is behind the place where the pass stands.
func (p *pass) through(ctx context.Context) error {
	var page []candidate
	return p.shape.pages(ctx, p.shape.whole(), p.state.At, cmp.Or(p.page, pageRows), func(row []sql.RawBytes) {
		var kept [][]byte
		for _, column := range row {
			kept = append(kept, bytes.Clone(column))
		}
		page = append(page, p.read(p.shape, kept, p.shape.now()))
	}, func() error {
		for len(page) > 0 {
			n, ids := unlike(page)
			if err := p.take(ctx, page[:n], ids); err != nil {
				return err
			}
			page = page[n:]
		}
		p.Progress(Progress{Rows: p.state.Rows, Written: p.state.sum(written), About: p.shape.rows})
		return nil
	}, func(_ int, began time.Time) error { return p.rest(ctx, began) })
}

// rest waits behind a page for as long as it took.
func (p *pass) rest(ctx context.Context, began time.Time) error {
	if p.NoWait {
		return nil
	}
	return wait.For(ctx, min(time.Since(began), longestRest))
}

// begin finds out what the table is, and where the pass begins.
func (p *pass) begin(ctx context.Context) (err error) {
	if p.shape, err = inspect(ctx, p.DB, p.From); err != nil {
		return err
	}
	s, log := p.shape, p.Records.Options().Table
	p.state = state{From: s.name(), Into: log, Group: p.Group, Last: p.LastPass,
		Options: digest(fmt.Sprintf("%v %v %q %q %v", p.Zone, p.NoBodyHash, p.Groups, p.Tags, s.primary)),
		Asked:   append(slices.Sorted(maps.Keys(p.Groups)), p.Group),
		Sums:    Sums{Counts: map[Kind]int{}, Names: []Name{}}}
	if s.columns[colTime].kind == "timestamp" && p.Zone != time.UTC {
		s.note("%s is a TIMESTAMP, which the server tells in UTC: --time-zone shifts it", colTime)
	}
	if p.DryRun {
		return nil
	}
	at, note, err := p.Records.Waypoint(ctx, waypoints+digest(s.database, s.table, log, p.Group), uuid.NewString())
	if err != nil {
		return err
	}
	p.waypoint = at
	var was state
	if json.Unmarshal(note, &was) == nil && !p.LastPass && !was.Last && !was.Done && was.Options == p.state.Options {
		p.state, p.report.Resumed = was, true
	} // else there is none, or it is of an older form or of another pass: from the first row
	return nil
}

// waypoints begins the names of all waypoints of passes. What follows tells those over one table into one group of one
// log from all others.
const waypoints = "taken:"

func digest(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// unlike is how many rows, from the first on, are of different messages of ours, so that one transaction may have them;
// and which messages these are.
func unlike(rows []candidate) (n int, ids []dedup.Identity) {
	seen := map[dedup.Identity]bool{}
	for _, c := range rows {
		if c.Kind == "" {
			if seen[c.taken.Identity] {
				break
			}
			seen[c.taken.Identity] = true
			ids = append(ids, c.taken.Identity)
		}
		n++
	}
	return n, ids
}

// take takes some rows over, or tries to anew while somebody else's are met, or answers are lost.
func (p *pass) take(ctx context.Context, some []candidate, ids []dedup.Identity) error {
	pause := 50 * time.Millisecond
	for try := 1; ; try++ {
		err := p.write(ctx, some, ids)
		again := errors.Is(err, dedup.ErrLost) || errors.Is(err, dedup.ErrUnknown) ||
			mysqldb.Classify(err) == mysqldb.FaultContention
		if !again || try == tries {
			return err
		}
		if ended := wait.For(ctx, pause); ended != nil {
			return errors.Join(ended, err)
		}
		pause *= 2
	}
}

// write looks our rows up, decides, and writes what changes together with how far the pass has come.
func (p *pass) write(ctx context.Context, some []candidate, ids []dedup.Identity) error {
	ours, err := p.Records.LookUp(ctx, ids)
	if err != nil {
		return err
	}
	next := p.state
	next.Counts, next.Names = maps.Clone(next.Counts), slices.Clone(next.Names)
	var all []dedup.Taken
	var named []Named
	for _, c := range some {
		row := ours[c.taken.Identity]
		if c.Kind == "" {
			if c.Kind = c.decide(row); c.Kind.named() {
				c.Why = fmt.Sprintf("%s/%s is %v", row.Tag, row.Key, row.Status)
			}
		}
		if c.Kind.is(written) {
			c.taken.From = row
			all = append(all, c.taken)
			if c.taken.Status == dedup.Dead && c.taken.Properties == nil {
				c.odd = append(slices.Clip(c.odd), NoMessage)
			}
		}
		if c.Kind.named() {
			named = append(named, c.Named)
		}
		next.count(&c)
		next.At = c.at
	}
	if err := p.save(ctx, next, all); err != nil {
		return err
	}
	room := min(MaxNamed-len(p.report.Named), len(named))
	p.report.Named = append(p.report.Named, named[:room]...)
	p.report.Unnamed += len(named) - room
	return nil
}

// save writes rows of ours together with how far the pass has come.
func (p *pass) save(ctx context.Context, next state, rows []dedup.Taken) error {
	if !p.DryRun {
		note, err := json.Marshal(next)
		if err != nil {
			return fmt.Errorf("note how far it came: %w", err)
		}
		at, err := p.Records.TakeOver(ctx, p.waypoint, note, rows)
		if err != nil {
			return err
		}
		p.waypoint = at
	}
	p.state = next
	return nil
}

// end notes that the last row was seen, and of a last pass says whether it was one.
func (p *pass) end(ctx context.Context) error {
	p.state.Done, p.state.Last = true, p.LastPass && p.report.NotLast == ""
	if err := p.save(ctx, p.state, nil); err != nil {
		return err
	}
	p.report.Finished = true
	if p.report.NotLast != "" {
		return fmt.Errorf("%w: %s", ErrNotLast, p.report.NotLast)
	}
	return nil
}

const (
	// maxNames is how many pairs of old group and tag a report counts.
	maxNames = 40
	// MaxNamed is how many rows a report names one by one.
	MaxNamed = 10_000
)

// Report says what a pass did, or would do. The names of its JSON form are stable.
type Report struct {
	From     string `json:"from"` // the old table
	LastPass bool   `json:"last_pass"`
	DryRun   bool   `json:"dry_run"`
	// Resumed: the pass went on where a former run was cut off. Counts are of both; Named is of this one.
	Resumed  bool `json:"resumed"`
	Finished bool `json:"finished"` // the last row was seen
	Sums
	Named   []Named  `json:"named"` // the rows of kinds that a person may want to look at
	Unnamed int      `json:"unnamed"`
	Notes   []string `json:"notes"` // what is to be known of the table
	// Late counts the rows that somebody wrote, changed or deleted during a last pass: there must be none.
	Late int `json:"late"`
	// NotLast is why a last pass that came to the last row was none after all; empty: it was, or was not to be.
	NotLast string `json:"not_last,omitempty"`
}

// Sums are what a pass has counted, in its report and in the note with which it goes on.
type Sums struct {
	Rows   int          `json:"rows"` // that were read
	Counts map[Kind]int `json:"counts"`
	Names  []Name       `json:"names"` // the first forty pairs of old group and tag
}

// Name is a pair of old group and tag, with the names under which its rows are taken over; these are empty when they
// are not.
type Name struct {
	OldGroup string `json:"old_group"`
	OldTag   string `json:"old_tag"`
	Group    string `json:"group,omitempty"`
	Tag      string `json:"tag,omitempty"`
	Rows     int    `json:"rows"`
}

// Named is one row of the old table. What is NULL there is empty.
type Named struct {
	Kind  Kind   `json:"kind"`
	Group string `json:"group"`
	Tag   string `json:"tag"`
	Key   string `json:"key"`
	Why   string `json:"why,omitempty"`
}

func (s *Sums) count(c *candidate) {
	s.Rows++
	s.Counts[c.Kind]++
	for _, k := range c.odd {
		s.Counts[k]++
	}
	if c.Kind.is(refused) {
		return
	}
	n := Name{OldGroup: c.Group, OldTag: c.Tag, Group: c.taken.Group, Tag: c.taken.Tag, Rows: 1}
	i, found := slices.BinarySearchFunc(s.Names, n, func(a, b Name) int {
		return cmp.Or(strings.Compare(a.OldGroup, b.OldGroup), strings.Compare(a.OldTag, b.OldTag))
	})
	switch {
	case found:
		s.Names[i].Rows++
	case len(s.Names) < maxNames:
		s.Names = slices.Insert(s.Names, i, n)
	}
}

// sum counts the rows of a class.
func (s *Sums) sum(of class) (n int) {
	for k, count := range s.Counts {
		if k.is(of) {
			n += count
		}
	}
	return n
}

// Contradictions counts the rows about whose effect the two logs disagree.
func (s *Sums) Contradictions() int { return s.sum(contradicts) }

// Chosen counts the rows that are of a group that was asked for.
func (s *Sums) Chosen() int { return s.Rows - s.Counts[OtherName] }
