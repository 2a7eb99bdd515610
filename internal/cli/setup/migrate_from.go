package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/legacyimport"
	"github.com/rollbackd/rollbackd/internal/screen"
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

// takenOver are the flags of migrate --from; what it points to is whole once they are checked.
func takenOver(f *command.Flags, status *bool) *legacyimport.Options {
	o := &legacyimport.Options{By: command.Person()}
	f.StringVar(&o.From, "from", "", "take over this TABLE or DATABASE.TABLE of the classic algorithm, on the same server")
	f.Check(func() error {
		alone := []string{"map-group", "map-tag", "time-zone", "no-body-hash", "last-pass", "dry-run", "no-wait"}
		i := slices.IndexFunc(alone, f.Changed)
		switch {
		case o.From == "" && i >= 0:
			return command.Usagef("--%s goes with --from", alone[i])
		case o.From == "":
			return nil
		case *status:
			return command.Usagef("--status and --from contradict each other; --dry-run shows what a pass would do")
		}
		_, _, err := legacyimport.ParseTable(o.From)
		return command.RefuseIf(err != nil, "--from: %w", err)
	})
	group, tag := dedup.Identity{Tag: "t", Key: "k"}, dedup.Identity{Group: "g", Key: "k"}
	o.Groups = newNames(f, &group, &group.Group, "map-group", "OLD=NEW: take over rows of this old group too, under the "+
		"new name; may be given several times")
	o.Tags = newNames(f, &tag, &tag.Tag, "map-tag", "OLD=NEW: the tag that these messages have in RabbitMQ; may be given "+
		"several times")
	zone := f.String("time-zone", "UTC", "the zone of times that stand in the old table without one (DATETIME): a name "+
		"like Asia/Shanghai, or an offset like +08:00")
	f.Check(func() (err error) {
		o.Zone, err = readZone(*zone)
		return err
	})
	f.BoolVar(&o.NoBodyHash, "no-body-hash", false, "the bodies in the old table are not, byte for byte, what RabbitMQ "+
		"delivers: take no hash, so that a delivery with any body is a duplicate")
	f.BoolVar(&o.LastPass, "last-pass", false, "the old consumer is stopped: read from the first row to the last, and "+
		"refuse if somebody writes all the same")
	f.BoolVar(&o.DryRun, "dry-run", false, "change nothing, print the report")
	f.BoolVar(&o.NoWait, "no-wait", false, "full speed: no rest between pages")
	return o
}

// newNames declares a flag of OLD=NEW, and holds what was said once the flags are checked: each new name must be one
// that this part of an identity can have.
func newNames(f *command.Flags, id *dedup.Identity, part *string, flag, help string) map[string]string {
	names := map[string]string{}
	pairs := f.StringArray(flag, nil, help)
	f.Check(func() error {
		for _, pair := range *pairs {
			old, name, ok := strings.Cut(pair, "=")
			if _, twice := names[old]; !ok || twice {
				return command.Usagef("--%s %q: want OLD=NEW, each OLD once", flag, pair)
			}
			*part = name
			if err := id.Validate(); err != nil {
				return command.Usagef("--%s %q: %w", flag, pair, err)
			}
			if strings.HasPrefix(id.Tag, "rollbackd.") {
				return command.Usagef("--%s %q: tags that begin with rollbackd. are its own", flag, pair)
			}
			names[old] = name
		}
		return nil
	})
	return names
}

// readZone reads a name of the time zone database, which a small image may lack, or an offset.
func readZone(text string) (*time.Location, error) {
	if at, err := time.Parse("-07:00", text); err == nil {
		_, offset := at.Zone()
		return time.FixedZone(text, offset), nil
	}
	zone, err := time.LoadLocation(text)
	if err != nil || text == "" || text == "Local" {
		return nil, command.Usagef("--time-zone %q is neither a zone that this machine knows (Asia/Shanghai) nor an offset "+
			"(+08:00)", text)
	}
	return zone, nil
}

// takeOver makes one pass and shows what it did, also when it ended early.
func takeOver(ctx context.Context, c *command.Call, o legacyimport.Options) error {
	if err := c.OpenLog(ctx); err != nil {
		return err
	}
	cfg := c.Config
	o.Group, o.Retention, o.Records, o.DB = cfg.Group, cfg.Retention(), c.Records, c.Pool
	sources, _ := wire.ParseKeySources(cfg.KeyFrom) // the settings were read
	o.Remake = func(id dedup.Identity, body []byte, messageID string) []byte {
		if d, ok := wire.Remake(sources, cfg.Queue, id, body, messageID); ok {
			return wire.MarshalProperties(d)
		}
		return nil
	}
	o.Progress = func(at legacyimport.Progress) {
		text := fmt.Sprintf("%d of about %d rows read, %d written", at.Rows, at.About, at.Written)
		switch {
		case at.Looking:
			text = fmt.Sprintf("does somebody still write? %d of about %d rows compared", at.Rows, at.About)
		case at.About == 0:
			text = fmt.Sprintf("%d rows read, %d written", at.Rows, at.Written)
		}
		c.Progress.Draw(text, at.Rows, int(at.About))
	}
	report, err := legacyimport.Run(ctx, o)
	switch {
	case errors.Is(err, legacyimport.ErrTable):
		return command.Said(err)
	case errors.Is(err, dedup.ErrOvertaken):
		err = fmt.Errorf("%w: another '%s migrate --from' goes on, and this one ends; nothing is done twice", err, c.Program)
	case err != nil && ctx.Err() != nil:
		err = fmt.Errorf("%w; run it again to go on", err)
	}
	if report.From == "" {
		return err
	}
	printErr := c.Print(report, func(p *command.Page) { writeTakeOver(c, p, report) })
	return errors.Join(printErr, c.Hinted(err), takeOverError(report))
}

// takeOverError is that of a pass which a person must look at.
func takeOverError(r legacyimport.Report) error {
	var errs []error
	if n := r.Contradictions(); n > 0 {
		errs = append(errs, fmt.Errorf("messages about whose effect the two logs disagree: %d", n))
	}
	if r.Finished && r.Rows > 0 && r.Chosen() == 0 {
		errs = append(errs, errors.New("no row is of a group that was asked for: see --map-group"))
	}
	return errors.Join(errs...)
}

func writeTakeOver(c *command.Call, p *command.Page, r legacyimport.Report) {
	p.Addf("%s into %s, group %s\n", r.From, c.Config.LogTable, screen.Printable(c.Config.Group))
	for _, note := range r.Notes {
		p.Addf("  %s\n", screen.Printable(note))
	}
	if r.Resumed {
		p.Addf("  it went on where a former run was cut off; the counts are of both\n")
	}
	p.Addf("\n")
	t := command.Table{Header: []string{"ROWS", "KIND", "WHAT BECAME OF THEM"}}
	t.Add(r.Rows, "read", "in all")
	odd := command.Table{Header: []string{"ROWS", "KIND", "WHAT IS ODD ABOUT THEM"}}
	for _, k := range legacyimport.Kinds {
		to := &t
		if k.Odd() {
			to = &odd
		}
		if n := r.Counts[k.Kind]; n > 0 {
			to.Add(n, k.Kind, k.Means)
		}
	}
	names := command.Table{Header: []string{"ROWS", "OLD GROUP", "OLD TAG", "GROUP", "TAG"}}
	for _, n := range r.Names {
		names.Add(n.Rows, n.OldGroup, n.OldTag, n.Group, n.Tag)
	}
	for _, t := range []command.Table{t, odd, names} {
		if len(t.Rows) > 0 {
			p.Table(t)
			p.Addf("\n")
		}
	}
	writeNamed(p, r)
	writeNext(c, p, r)
}

// writeNamed names the rows that a person may want to look at, some of each kind.
func writeNamed(p *command.Page, r legacyimport.Report) {
	for _, told := range legacyimport.Kinds {
		rows := slices.DeleteFunc(slices.Clone(r.Named), func(n legacyimport.Named) bool { return n.Kind != told.Kind })
		for _, n := range rows[:min(len(rows), command.MaxShown)] {
			p.Addf("%s: %s\n", n.Kind, screen.Printable(n.Group+" "+n.Tag+" "+n.Key+"  "+n.Why))
		}
		if more := len(rows) - command.MaxShown; more > 0 {
			p.Addf("%s: and %d more; -o json lists all\n", told.Kind, more)
		}
	}
	if r.Unnamed > 0 {
		p.Addf("and %d rows that no list names\n", r.Unnamed)
	}
	if len(r.Named) > 0 {
		p.Addf("\n")
	}
}

// writeNext says what a person can do.
func writeNext(c *command.Call, p *command.Page, r legacyimport.Report) {
	if r.Counts[legacyimport.Open]+r.Counts[legacyimport.Renewed] > 0 || r.LastPass {
		p.Addf("What was left open is dead with the reason effect_unknown; no queue has a letter of it.\n"+
			"Decide after the last pass: '%[1]s dlq list --reason effect_unknown', '%[1]s dlq show KEY', and of all:\n"+
			"  %[1]s dlq export --reason effect_unknown -o open.ndjson\n"+
			"  %[1]s dlq discard --from done.ndjson --why 'it had its effect'    # the lines of those that had\n"+
			"  %[1]s dlq replay --from again.ndjson                              # the lines of those that had not\n\n",
			c.Program)
	}
	switch {
	case r.DryRun:
		p.Addf("This was a dry run: nothing was changed.\n")
	case !r.Finished:
		p.Addf("The pass was cut off. Run it again.\n")
	case !r.LastPass:
		p.Addf("The old consumer may work on. Then stop it, run this again with --last-pass, and start '%s run'.\n",
			c.Program)
	case r.NotLast != "":
		p.Addf("This was no last pass: %s.\n", screen.Printable(r.NotLast))
	default:
		p.Addf("This was the last pass. Start '%s run', and leave the old consumer stopped.\n", c.Program)
	}
}
