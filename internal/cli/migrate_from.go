package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/legacyimport"
	"github.com/rollbackd/rollbackd/internal/wire"
)

const migrateFromHelp = `

With --from: take the table of the classic algorithm (trade_mq_consumer_log) over into the consumer log. It may run
beside the old consumer, which it does not hinder and whose table it never changes, and as often as you like: each pass
brings what has changed since. In the end stop the old consumer, make a pass with --last-pass, and start 'run'.

Of each row: status 1 becomes success, so that a later delivery is a duplicate; 0 and 2 become dead with the reason
effect_unknown, for a person to decide, and success if a later pass finds 1. A row that rollbackd or a person has moved
since stays as it is. Rows of the group ROLLBACKD_GROUP are taken over, and those of each --map-group. --dry-run prints
the same report and changes nothing. The exit code is 1 when two logs disagree about an effect, and when a last pass was
none: all rows of these groups are compared before and after it, at least ten seconds apart, and one was new, changed or
gone; or times are in the future by hours, so that --time-zone is wrong. A consumer that writes less often is not seen:
look yourself that it has ended.

Killed at any point and run again, a pass goes on where it was; a last pass begins at the first row, and only reads what
it has written before. Between pages it rests for as long as they take.`

// takeOverFlags are those of migrate --from.
type takeOverFlags struct {
	from, zone                           string
	groups, tags                         []string
	lastPass, dryRun, noWait, noBodyHash bool
}

func addTakeOverFlags(cmd *cobra.Command) *takeOverFlags {
	f := new(takeOverFlags)
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "take over this TABLE or DATABASE.TABLE of the classic algorithm, on the same "+
		"server")
	flags.StringArrayVar(&f.groups, "map-group", nil, "OLD=NEW: take over rows of this old group too, under the new "+
		"name; may be given several times")
	flags.StringArrayVar(&f.tags, "map-tag", nil, "OLD=NEW: the tag that these messages have in RabbitMQ; may be given "+
		"several times")
	flags.StringVar(&f.zone, "time-zone", "UTC", "the zone of times that stand in the old table without one (DATETIME): "+
		"a name like Asia/Shanghai, or an offset like +08:00")
	flags.BoolVar(&f.noBodyHash, "no-body-hash", false, "the bodies in the old table are not, byte for byte, what "+
		"RabbitMQ delivers: take no hash, so that a delivery with any body is a duplicate")
	flags.BoolVar(&f.lastPass, "last-pass", false, "the old consumer is stopped: read from the first row to the last, "+
		"and refuse if somebody writes all the same")
	flags.BoolVar(&f.dryRun, "dry-run", false, "change nothing, print the report")
	flags.BoolVar(&f.noWait, "no-wait", false, "full speed: no rest between pages")
	return f
}

// check refuses flags that have no meaning without --from.
func (f *takeOverFlags) check(cmd *cobra.Command, status bool) error {
	if f.from == "" {
		for _, name := range []string{
			"map-group", "map-tag", "time-zone", "no-body-hash", "last-pass", "dry-run", "no-wait",
		} {
			if cmd.Flags().Changed(name) {
				return usageErrorf("--%s goes with --from", name)
			}
		}
		return nil
	}
	if status {
		return usageErrorf("--status and --from contradict each other; --dry-run shows what a pass would do")
	}
	return nil
}

// options reads the flags.
func (f *takeOverFlags) options() (o legacyimport.Options, err error) {
	o = legacyimport.Options{From: f.from, NoBodyHash: f.noBodyHash, LastPass: f.lastPass, DryRun: f.dryRun,
		NoWait: f.noWait, By: person()}
	if _, _, err := legacyimport.ParseTable(f.from); err != nil {
		return o, usageErrorf("--from: %w", err)
	}
	if o.Groups, err = readNames("map-group", f.groups, func(name string) dedup.Identity {
		return dedup.Identity{Group: name, Tag: "t", Key: "k"}
	}); err != nil {
		return o, err
	}
	if o.Tags, err = readNames("map-tag", f.tags, func(name string) dedup.Identity {
		return dedup.Identity{Group: "g", Tag: name, Key: "k"}
	}); err != nil {
		return o, err
	}
	o.Zone, err = readZone(f.zone)
	return o, err
}

// readNames reads OLD=NEW; the new name must be one that an identity can have.
func readNames(flag string, pairs []string, identity func(string) dedup.Identity) (map[string]string, error) {
	names := map[string]string{}
	for _, pair := range pairs {
		old, name, ok := strings.Cut(pair, "=")
		if _, twice := names[old]; !ok || twice {
			return nil, usageErrorf("--%s %q: want OLD=NEW, each OLD once", flag, pair)
		}
		id := identity(name)
		if err := id.Validate(); err != nil {
			return nil, usageErrorf("--%s %q: %w", flag, pair, err)
		}
		if strings.HasPrefix(id.Tag, "rollbackd.") {
			return nil, usageErrorf("--%s %q: tags that begin with rollbackd. are its own", flag, pair)
		}
		names[old] = name
	}
	return names, nil
}

// readZone reads a name of the time zone database, which a small image may lack, or an offset.
func readZone(text string) (*time.Location, error) {
	if at, err := time.Parse("-07:00", text); err == nil {
		_, offset := at.Zone()
		return time.FixedZone(text, offset), nil
	}
	zone, err := time.LoadLocation(text)
	if err != nil || text == "" || text == "Local" {
		return nil, usageErrorf("--time-zone %q is neither a zone that this machine knows (Asia/Shanghai) nor an offset "+
			"(+08:00)", text)
	}
	return zone, nil
}

// takeOver makes one pass and shows what it did, also when it ended early.
func (a *app) takeOver(ctx context.Context, out *output, f *takeOverFlags) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	o.Group, o.Retention = cfg.Group, cfg.Retention()
	db, closeDB, err := a.openDatabase(ctx, cfg, "migrate")
	if err != nil {
		return err
	}
	defer closeDB()
	if o.Records, err = a.newLog(ctx, cfg, db); err != nil {
		return err
	}
	if o.DB, err = db.DB(); err != nil {
		return fmt.Errorf("database handle: %w", err)
	}
	sources, err := wire.ParseKeySources(cfg.KeyFrom)
	if err != nil {
		return fmt.Errorf("ROLLBACKD_KEY_FROM: %w", err)
	}
	o.Remake = func(id dedup.Identity, body []byte, messageID string) []byte {
		d, ok := wire.Remake(sources, cfg.Queue, id, body, messageID)
		if !ok {
			return nil
		}
		return wire.MarshalProperties(d)
	}
	progress := a.newProgress(time.Now())
	o.Progress = func(at legacyimport.Progress) {
		text := fmt.Sprintf("%d rows read, %d written", at.Rows, at.Written)
		if at.About > 0 {
			text = fmt.Sprintf("%d of about %d rows read, %d written", at.Rows, at.About, at.Written)
		}
		if at.Looking {
			text = fmt.Sprintf("does somebody still write? %d of about %d rows compared", at.Rows, at.About)
		}
		progress.draw(text, at.Rows, int(at.About))
	}
	report, err := legacyimport.Run(ctx, o)
	progress.end()
	switch {
	case errors.Is(err, legacyimport.ErrTable):
		return err
	case errors.Is(err, dedup.ErrOvertaken):
		err = fmt.Errorf("%w: another '%s migrate --from' goes on, and this one ends; nothing is done twice", err, a.name)
	case err != nil && ctx.Err() != nil:
		err = fmt.Errorf("%w; run it again to go on", err)
	}
	if report.From == "" {
		return a.mysqlError(cfg, err)
	}
	return errors.Join(a.showTakeOver(report, out, cfg), a.mysqlError(cfg, err), a.takeOverError(report))
}

// takeOverError is that of a pass which a person must look at.
func (a *app) takeOverError(r legacyimport.Report) error {
	var errs []error
	if n := r.Contradictions(); n > 0 {
		errs = append(errs, fmt.Errorf("messages about whose effect the two logs disagree: %d", n))
	}
	if r.Finished && r.Rows > 0 && r.Chosen() == 0 {
		errs = append(errs, errors.New("no row is of a group that was asked for: see --map-group"))
	}
	return errors.Join(errs...)
}

// becameOf says what became of a row of a kind, or what is odd about it.
var becameOf = map[legacyimport.Kind]string{
	legacyimport.Success: "success there, success here: a later delivery is a duplicate",
	legacyimport.Open:    "left open there (status 0 or 2): filed as dead, effect_unknown",
	legacyimport.Settled: "filed as dead by an earlier pass, success there by now: success",
	legacyimport.Renewed: "filed as dead by an earlier pass, moved there since, still open: remark and " +
		"times renewed",
	legacyimport.There:       "as an earlier pass took it over",
	legacyimport.Merged:      "has the identity of another old row, by the names that were given: success wins",
	legacyimport.Ours:        "rollbackd, or a person, has moved its row: that decides",
	legacyimport.OtherName:   "of other groups: left alone",
	legacyimport.BothApplied: "success there, and applied by rollbackd too: the effect may be there twice. Look",
	legacyimport.UnderWay: "success there, and rollbackd has it under way, or dead: discard it, or the " +
		"effect comes twice",
	legacyimport.WentBack: "was success there at an earlier pass, and is not any more: it stays success " +
		"here. Look",
	legacyimport.NullName: "refused: group, tag or key is NULL. No delivery can have such a name",
	legacyimport.TooLong: "refused: group, tag or key is too long. Such a delivery is unidentified, and " +
		"has no effect",
	legacyimport.Unusable: "refused: an empty name, no UTF-8, a control character. Such a delivery is " +
		"unidentified",
	legacyimport.ReservedTag:  "refused: tags that begin with rollbackd. are its own. Such a delivery is unidentified",
	legacyimport.StatusNull:   "no status: taken for left open",
	legacyimport.StatusOther:  "a status that is none of 0, 1 and 2: taken for left open",
	legacyimport.OddTimes:     "no number of times, or a negative one: 0, for a success 1",
	legacyimport.ManyTimes:    "tried more than 5 times: taken over as it is",
	legacyimport.NoTime:       "no time: as of now",
	legacyimport.FutureTime:   "a time in the future: as of now",
	legacyimport.OtherZone:    "a time up to 26 hours in the future: as of now. Is --time-zone right?",
	legacyimport.Outlived:     "older than ROLLBACKD_LOG_RETENTION: the daemon deletes it, and then a copy is new",
	legacyimport.NoBody:       "no body: no hash, so a delivery with any body is a copy",
	legacyimport.DoubtfulBody: "a body that may be cut or changed: no hash, so a delivery with any body is a copy",
	legacyimport.CutBody: "left open, with a body over 256 KiB: the log keeps its beginning; it cannot " +
		"be sent from here",
	legacyimport.NoMessage: "left open, and no message with its identity can be made of it: it cannot be " +
		"sent from here",
}

func (a *app) showTakeOver(r legacyimport.Report, out *output, cfg config.Config) error {
	if out.chosen == outputJSON {
		return writeJSON(a.stdout, r)
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s into %s, group %s\n", r.From, cfg.LogTable, printable(cfg.Group))
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "  %s\n", printable(note))
	}
	if r.Resumed {
		text.WriteString("  it went on where a former run was cut off; the counts are of both\n")
	}
	text.WriteString("\n")
	t := table{header: []string{"ROWS", "KIND", "WHAT BECAME OF THEM"}}
	t.add(r.Rows, "read", "in all")
	addKinds(&t, r, legacyimport.Fates())
	odd := table{header: []string{"ROWS", "KIND", "WHAT IS ODD ABOUT THEM"}}
	addKinds(&odd, r, legacyimport.Oddities())
	names := table{header: []string{"ROWS", "OLD GROUP", "OLD TAG", "GROUP", "TAG"}}
	for _, n := range r.Names {
		names.add(n.Rows, n.OldGroup, n.OldTag, n.Group, n.Tag)
	}
	for _, t := range []table{t, odd, names} {
		if len(t.rows) == 0 {
			continue
		}
		if err := writeTable(&text, t); err != nil {
			return err
		}
		text.WriteString("\n")
	}
	writeNamed(&text, r)
	a.writeNext(&text, r)
	if _, err := text.WriteTo(a.stdout); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

func addKinds(t *table, r legacyimport.Report, kinds []legacyimport.Kind) {
	for _, k := range kinds {
		if n := r.Counts[k]; n > 0 {
			t.add(n, k, becameOf[k])
		}
	}
}

// writeNamed names the rows that a person may want to look at, some of each kind.
func writeNamed(w io.Writer, r legacyimport.Report) {
	for _, kind := range legacyimport.Fates() {
		n := 0
		for _, row := range r.Named {
			if row.Kind != kind {
				continue
			}
			if n++; n <= maxShown {
				fmt.Fprintf(w, "%s: %s %s %s  %s\n", kind, printable(row.Group), printable(row.Tag), printable(row.Key),
					printable(row.Why))
			}
		}
		if n > maxShown {
			fmt.Fprintf(w, "%s: and %d more; -o json lists all\n", kind, n-maxShown)
		}
	}
	if r.Unnamed > 0 {
		fmt.Fprintf(w, "and %d rows that no list names\n", r.Unnamed)
	}
	if len(r.Named) > 0 {
		fmt.Fprintln(w)
	}
}

// writeNext says what a person can do.
func (a *app) writeNext(w io.Writer, r legacyimport.Report) {
	if r.Counts[legacyimport.Open]+r.Counts[legacyimport.Renewed] > 0 || r.LastPass {
		fmt.Fprintf(w, "What was left open is dead with the reason effect_unknown; no queue has a letter of it.\n"+
			"Decide after the last pass: '%[1]s dlq list --reason effect_unknown', '%[1]s dlq show KEY', and of all:\n"+
			"  %[1]s dlq export --reason effect_unknown -o open.ndjson\n"+
			"  %[1]s dlq discard --from done.ndjson --why 'it had its effect'    # the lines of those that had\n"+
			"  %[1]s dlq replay --from again.ndjson                              # the lines of those that had not\n\n", a.name)
	}
	switch {
	case r.DryRun:
		fmt.Fprint(w, "This was a dry run: nothing was changed.\n")
	case !r.Finished:
		fmt.Fprint(w, "The pass was cut off. Run it again.\n")
	case !r.LastPass:
		fmt.Fprintf(w, "The old consumer may work on. Then stop it, run this again with --last-pass, and start '%s run'.\n",
			a.name)
	case r.NotLast != "":
		fmt.Fprintf(w, "This was no last pass: %s.\n", printable(r.NotLast))
	default:
		fmt.Fprintf(w, "This was the last pass. Start '%s run', and leave the old consumer stopped.\n", a.name)
	}
}
