package legacyimport

import (
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
	Options string   `json:"options"` // digest of what the pass was asked for
	Began   int64    `json:"began"`   // by the database's clock, microseconds since 1970
	Done    bool     `json:"done"`    // the last row was seen
	At      [][]byte `json:"at"`      // primary key of the last row that is done
	Sums
	Late  int      `json:"late"`
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

	now     time.Time // the database's, when this run began
	started time.Time // at that moment, by the clock of this process
}

// Run makes one pass, or goes on with one that was cut off: of the same options, and no last one, which begins anew. It
// may be killed at any point. Of two at once on the same table one ends with [dedup.ErrOvertaken], and has written
// nothing that the other would not.
//
// The report is good beside an error: what it counts as written is. An error that is none of ErrTable, ErrNotLast or
// dedup.ErrOvertaken is that of a server.
func Run(ctx context.Context, o Options) (Report, error) {
	o.quiet = cmp.Or(o.quiet, quiet)
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	p := &pass{Options: o}
	err := p.run(ctx)
	if p.shape != nil {
		p.report.close(p)
	}
	if err != nil {
		err = fmt.Errorf("take over %s: %w", o.From, err)
	}
	return p.report, err
}

func (p *pass) run(ctx context.Context) (err error) {
	if p.shape, err = inspect(ctx, p.DB, p.From); err != nil {
		return err
	}
	if err := p.begin(ctx); err != nil {
		return err
	}
	var before []uint64
	if p.LastPass {
		if _, err := p.look(ctx, func(mark uint64, _ []sql.RawBytes) { before = append(before, mark) }); err != nil {
			return err
		}
	}
	looked := time.Now()
	if err := p.through(ctx); err != nil {
		return err
	}
	if p.LastPass {
		if err := wait.For(ctx, p.quiet-time.Since(looked)); err != nil {
			return err
		}
		if err := p.compare(ctx, before); err != nil {
			return err
		}
	}
	return p.end(ctx)
}

// through takes over what is behind the place where the pass stands.
func (p *pass) through(ctx context.Context) error {
	var page []oldRow
	return p.shape.pages(ctx, p.DB, p.shape.wholeText(), p.state.At, cmp.Or(p.page, pageRows),
		func(scan func(...any) error) ([][]byte, error) {
			o, err := p.shape.readRow(scan)
			page = append(page, o)
			return o.at, err
		},
		func(began time.Time, last bool) error {
			for len(page) > 0 {
				n, err := p.chunk(ctx, page)
				if err != nil {
					return err
				}
				page = page[n:]
			}
			p.Progress(Progress{Rows: p.state.Rows, Written: p.state.written(), About: p.shape.rows})
			return p.rest(ctx, began, last)
		})
}

// rest waits for as long as a page took, if another follows.
func (p *pass) rest(ctx context.Context, began time.Time, last bool) error {
	if p.NoWait || last {
		return nil
	}
	return wait.For(ctx, min(time.Since(began), longestRest))
}

// begin finds out where the pass begins.
func (p *pass) begin(ctx context.Context) error {
	var now int64
	if err := p.DB.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))").
		Scan(&now); err != nil {
		return fmt.Errorf("ask for the time: %w", err)
	}
	p.now, p.started = time.UnixMicro(now), time.Now()
	p.state = state{From: p.shape.name(), Into: p.Records.Options().Table, Group: p.Group, Last: p.LastPass,
		Options: p.digest(), Began: now, Asked: slices.Sorted(maps.Keys(p.Groups))}
	if _, mapped := p.Groups[p.Group]; !mapped {
		p.state.Asked = append(p.state.Asked, p.Group)
	}
	if p.shape.columns[colTime].kind == "timestamp" && p.zone() != time.UTC {
		p.shape.note("%s is a TIMESTAMP, which the server tells in UTC: --time-zone shifts it", colTime)
	}
	if p.DryRun {
		return nil
	}
	var note []byte
	var err error
	p.waypoint, note, err = p.Records.Waypoint(ctx, p.waypointName(), uuid.NewString())
	if err != nil {
		return err
	}
	var was state
	if err := json.Unmarshal(note, &was); err != nil || p.LastPass || was.Done || was.Options != p.state.Options ||
		len(was.At) != len(p.shape.primary) {
		return nil // none, an older form, or another pass: from the first row
	}
	p.state, p.report.Resumed = was, true
	return nil
}

// waypoints begins the names of all waypoints of passes.
const waypoints = "taken:"

// waypointName tells the passes over one table into one group of one log from all others.
func (p *pass) waypointName() string {
	return waypoints + digest(p.shape.database, p.shape.table, p.Records.Options().Table, p.Group)
}

func (o *Options) zone() *time.Location { return cmp.Or(o.Zone, time.UTC) }

// digest tells what the pass was asked for.
func (p *pass) digest() string {
	parts := []string{fmt.Sprint(p.zone(), p.NoBodyHash, p.LastPass)}
	for _, names := range []map[string]string{p.Groups, p.Tags} {
		parts = append(parts, "names")
		for _, old := range slices.Sorted(maps.Keys(names)) {
			parts = append(parts, old, names[old])
		}
	}
	return digest(parts...)
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// chunk takes the first rows of a page over, as many as one transaction may have, and says how many they were.
func (p *pass) chunk(ctx context.Context, rows []oldRow) (n int, err error) {
	now := p.now.Add(time.Since(p.started))
	var some []candidate
	seen := map[dedup.Identity]bool{}
	bodies := int64(0)
	for i := range rows {
		c := p.read(p.shape, &rows[i], now)
		if c.fate == "" && c.taken.Status == dedup.Dead {
			bodies += min(c.length, dedup.MaxBody)
		}
		if i > 0 && (bodies > chunkBodies || c.fate == "" && seen[c.taken.Identity]) {
			break
		}
		seen[c.taken.Identity] = true
		some = append(some, c)
	}
	pause := 50 * time.Millisecond
	for try := 1; ; try++ {
		err = p.write(ctx, some)
		again := errors.Is(err, dedup.ErrLost) || errors.Is(err, dedup.ErrUnknown) ||
			mysqldb.Classify(err) == mysqldb.FaultContention
		if !again || try == tries {
			return len(some), err
		}
		if ended := wait.For(ctx, pause); ended != nil {
			return 0, errors.Join(ended, err)
		}
		pause = min(2*pause, longestRest)
	}
}

// write looks our rows up, decides, and writes what changes together with how far the pass has come.
func (p *pass) write(ctx context.Context, some []candidate) error {
	var ids []dedup.Identity
	for i := range some {
		if some[i].fate == "" {
			ids = append(ids, some[i].taken.Identity)
		}
	}
	ours, err := p.Records.LookUp(ctx, ids)
	if err != nil {
		return err
	}
	next := p.state.clone()
	var all []dedup.Taken
	var named []Named
	for i := range some {
		c := &some[i]
		fate, write, odd := c.fate, false, c.odd
		row := ours[c.taken.Identity]
		if fate == "" {
			fate, write = decide(c, row)
		}
		if write {
			taken, err := p.whole(ctx, c, row)
			if err != nil {
				return err
			}
			if taken.Status == dedup.Dead && taken.Properties == nil {
				odd = append(slices.Clip(odd), NoMessage)
			}
			all = append(all, taken)
		}
		next.count(c, fate, odd)
		if fate.named() {
			n := Named{Kind: fate, Group: string(c.old.group), Tag: string(c.old.tag), Key: string(c.old.key), Why: c.why}
			if !fate.is(refused) {
				n.Why = fmt.Sprintf("%s/%s is %v", row.Tag, row.Key, row.Status)
			}
			named = append(named, n)
		}
	}
	next.At = some[len(some)-1].old.at
	if err := p.save(ctx, next, all); err != nil {
		return err
	}
	p.report.name(named)
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

// whole is what is written of a candidate: with all that is known of the message when it was left open.
func (p *pass) whole(ctx context.Context, c *candidate, ours dedup.Row) (dedup.Taken, error) {
	taken := c.taken
	taken.From = ours
	if taken.Status != dedup.Dead || !c.old.bodyLength.Valid {
		return taken, nil
	}
	taken.Body = c.old.body
	if taken.Body == nil {
		body, err := p.shape.readBody(ctx, p.DB, c.old.at)
		if err != nil && !errors.Is(err, sql.ErrNoRows) { // else somebody has just deleted it
			return taken, err
		}
		taken.Body = body
	}
	if p.Remake != nil && c.length <= dedup.MaxBody {
		taken.Properties = p.Remake(taken.Identity, taken.Body, taken.MessageID)
	}
	return taken, nil
}

// end notes that the last row was seen, and of a last pass says whether it was one.
func (p *pass) end(ctx context.Context) error {
	p.state.Done = true
	if n := p.state.Counts[OtherZone]; n > 0 && p.LastPass && p.report.NotLast == "" {
		p.report.NotLast = fmt.Sprintf("%d rows have a time that is up to 26 hours in the future, so the zone of %s is "+
			"another one. Make the last pass again with the right --time-zone", n, colTime)
	}
	if p.report.NotLast != "" {
		p.state.Last = false
	}
	if err := p.save(ctx, p.state, nil); err != nil {
		return err
	}
	p.report.Finished = true
	if p.report.NotLast != "" {
		return fmt.Errorf("%w: %s", ErrNotLast, p.report.NotLast)
	}
	return nil
}

// clone has counts of its own; neither is nil.
func (s *state) clone() state {
	c := *s
	c.Counts, c.Names = map[Kind]int{}, append([]Name{}, s.Names...)
	maps.Copy(c.Counts, s.Counts)
	return c
}

func (s *state) count(c *candidate, fate Kind, odd []Kind) {
	s.Rows++
	s.Counts[fate]++
	if c.fate == "" {
		for _, k := range odd {
			s.Counts[k]++
		}
	}
	if c.fate == "" || c.fate == OtherName {
		s.addName(c)
	}
}

func (s *state) written() int {
	return s.Counts[Success] + s.Counts[Open] + s.Counts[Settled] + s.Counts[Renewed]
}

func (s *state) addName(c *candidate) {
	group, tag := string(c.old.group), string(c.old.tag)
	i, found := slices.BinarySearchFunc(s.Names, group+"\x00"+tag, func(n Name, want string) int {
		return strings.Compare(n.OldGroup+"\x00"+n.OldTag, want)
	})
	switch {
	case found:
		s.Names[i].Rows++
	case len(s.Names) < maxNames:
		n := Name{OldGroup: group, OldTag: tag, Rows: 1}
		if c.fate == "" {
			n.Group, n.Tag = c.taken.Group, c.taken.Tag
		}
		s.Names = slices.Insert(s.Names, i, n)
	}
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

// Contradictions counts the rows about whose effect the two logs disagree.
func (r *Report) Contradictions() (n int) {
	for k, count := range r.Counts {
		if k.is(contradicts) {
			n += count
		}
	}
	return n
}

// Chosen counts the rows that are of a group that was asked for.
func (r *Report) Chosen() int { return r.Rows - r.Counts[OtherName] }

func (r *Report) name(more []Named) {
	room := MaxNamed - len(r.Named)
	n := min(room, len(more))
	r.Named = append(r.Named, more[:n]...)
	r.Unnamed += len(more) - n
}

// close fills in what a pass knows; no field is nil, for JSON.
func (r *Report) close(p *pass) {
	r.From, r.LastPass, r.DryRun, r.Sums, r.Late = p.shape.name(), p.LastPass, p.DryRun,
		p.state.clone().Sums, p.state.Late
	r.Notes, r.Named = append([]string{}, p.shape.notes...), append([]Named{}, r.Named...)
}
