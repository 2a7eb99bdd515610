package deadletter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// letter is one dead letter on its way through a run.
type letter struct {
	taken
	own   wire.Identity // by what it says of itself; filed under a key of ours when that is unusable
	filed bool          // own is such a key
	id    wire.Identity // of the row it belongs to: own, or its conflict's
	info  wire.CopyInfo // what its headers say, which only informs
	row   dedup.Row
	old   dedup.Row // the open row of a former identity, when KEY_FROM was corrected since; else Absent

	// conflicted: it was filed as conflict, whatever became of that row.
	conflicted bool

	line   *Line        // of the file that it comes from
	former *dedup.Entry // its body was mended: what becomes of the former one
	bar    Why          // why it must not be replayed, whatever its row says

	followers []*letter // letters of the same message in the same pass
	why       Why       // why it stays; "" while it does not
	err       error     // more about that
}

func (l *Letters) read(t taken) *letter {
	own, err := wire.Identify(l.o.Group, l.keyFrom, l.o.Queue, t.Delivery)
	return &letter{taken: t, own: own, id: own, filed: err != nil, info: wire.ReadCopy(t.Headers), old: dedup.Row{Version: dedup.Version{Status: dedup.Absent}}}
}

// lookUp finds the rows of letters. One whose key is taken by another body belongs to the row under which its conflict is
// filed. One that was filed under a key of ours and can be identified by now, because KEY_FROM was corrected, also has the
// row of its former identity; where that one has ended and the new one has no row, the letter has ended with it.
func (l *Letters) lookUp(ctx context.Context, letters []*letter, discardedToo bool) error {
	rows, err := l.o.Records.LookUp(ctx, keysOf(letters, func(lt *letter) []dedup.Key { return []dedup.Key{lt.own.Key} }))
	if err != nil {
		return err
	}
	former := map[*letter][]dedup.Key{}
	var more []dedup.Key
	for _, lt := range letters {
		lt.id, lt.row = lt.own, rows[lt.own.Key]
		if lt.filed {
			continue
		}
		conflict, _ := wire.Conflict(lt.own, lt.Body) // its error is the remark of a new row
		taken := differs(lt)
		if taken {
			lt.id = conflict
			more = append(more, conflict.Key)
		}
		if lt.row.Status == dedup.Absent || lt.info.Reason == wire.ReasonUnidentified || lt.info.Reason == wire.ReasonConflict {
			former[lt] = l.formerKeys(lt)
			if !taken {
				former[lt] = append(former[lt], conflict.Key)
			}
			more = append(more, former[lt]...)
		}
	}
	if len(more) == 0 {
		return nil
	}
	slices.SortFunc(more, dedup.Key.Compare)
	filedRows, err := l.o.Records.LookUp(ctx, slices.Compact(more))
	if err != nil {
		return err
	}
	for _, lt := range letters {
		if lt.id.Key != lt.own.Key {
			lt.row = filedRows[lt.id.Key]
		}
		for _, key := range former[lt] {
			row := filedRows[key]
			lt.conflicted = lt.conflicted || key.Tag == wire.TagConflict && row.Status != dedup.Absent
			switch {
			case lt.old.Status == dedup.Absent && isOpen(row):
				lt.old = row
			case lt.row.Status == dedup.Absent && row.Status == dedup.Discarded && !discardedToo:
				lt.id.Key, lt.row = key, row
			}
		}
	}
	return nil
}

// differs reports whether the row belongs to another body. It is asked before the status, and only of a committed row.
func differs(lt *letter) bool {
	return len(lt.row.BodyHash) > 0 && !bytes.Equal(lt.row.BodyHash, lt.own.BodyHash[:])
}

// isOpen reports whether a former row still waits to be ended.
func isOpen(row dedup.Row) bool {
	switch row.Status {
	case dedup.Dead, dedup.Failed:
		return true
	case dedup.Processing:
		return !row.LeaseLive
	}
	return false
}

// formerKeys are the keys under which a letter that is identified now can have been filed when it was not. Which source
// was unusable then is not known, so all that the message has are tried.
func (l *Letters) formerKeys(lt *letter) []dedup.Key {
	const most = 200 // sources that are tried
	names := []string{"property:message_id", "property:correlation_id", "body:sha256"}
	for name := range lt.Headers {
		names = append(names, "header:"+name)
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(lt.Body, &fields) == nil {
		for name := range fields {
			names = append(names, "json:/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
		}
	}
	keys := l.filedKey(nil, lt.Delivery, nil) // none of the sources existed
	for _, name := range names[:min(len(names), most)] {
		sources, err := wire.ParseKeySources(name)
		if err == nil {
			keys = l.filedKey(keys, lt.Delivery, sources)
		}
	}
	return keys
}

// filedKey appends the key under which these sources file a message, if they do not identify it.
func (l *Letters) filedKey(keys []dedup.Key, d rabbit.Delivery, sources []wire.KeySource) []dedup.Key {
	id, err := wire.Identify(l.o.Group, sources, l.o.Queue, d)
	if _, filed := errors.AsType[*wire.FiledError](err); filed {
		return append(keys, id.Key)
	}
	return keys
}

func keysOf(letters []*letter, of func(*letter) []dedup.Key) []dedup.Key {
	var keys []dedup.Key
	for _, lt := range letters {
		keys = append(keys, of(lt)...)
	}
	slices.SortFunc(keys, dedup.Key.Compare)
	return slices.Compact(keys)
}

// reason is why the letter is dead: the row says so, and where it does not, the header.
func (lt *letter) reason() string {
	switch {
	case lt.row.Status == dedup.Dead && lt.row.Reason != "":
		return lt.row.Reason
	case lt.old.Reason != "":
		return lt.old.Reason
	}
	return string(lt.info.Reason)
}

func (lt *letter) deadAt() time.Time {
	switch {
	case lt.row.Status == dedup.Dead && !lt.row.DeadAt.IsZero():
		return lt.row.DeadAt
	case !lt.old.DeadAt.IsZero():
		return lt.old.DeadAt
	}
	return lt.info.DeadAt
}

// mayMatch is false when the letter cannot have one of the filter's keys, whatever its row says: so a run for a few keys
// among many letters asks the database nothing about the others. A filed key begins with sha256:, of what is no matter.
func (lt *letter) mayMatch(f Filter) bool {
	return len(f.Keys) == 0 || slices.ContainsFunc(f.Keys, func(key string) bool {
		return key == lt.own.Key.Name || strings.HasPrefix(key, "sha256:")
	})
}

// matches reports whether the filter chooses the letter.
func (lt *letter) matches(f Filter) bool {
	named := func(want string, part func(dedup.Key) string) bool {
		return want == "" || want == part(lt.id.Key) || want == part(lt.own.Key) || lt.old.Status != dedup.Absent && want == part(lt.old.Key)
	}
	died := lt.deadAt()
	byKey := func(k string) bool { return named(k, func(k dedup.Key) string { return k.Name }) }
	return (len(f.Keys) == 0 || slices.ContainsFunc(f.Keys, byKey)) &&
		named(f.Tag, func(k dedup.Key) string { return k.Tag }) &&
		(len(f.Reasons) == 0 || slices.Contains(f.Reasons, lt.reason())) &&
		(f.Since.IsZero() || !died.Before(f.Since)) &&
		(f.Until.IsZero() || died.Before(f.Until)) &&
		(f.due == nil || f.due(lt.row))
}

// age is the time since the message first failed, by the earliest of what tells; false when nothing does.
func (lt *letter) age(now time.Time) (time.Duration, bool) {
	var first time.Time
	for _, t := range append(deathTimes(lt.Headers), lt.info.FirstFailedAt, lt.info.DeadAt) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return now.Sub(first), !first.IsZero()
}

// deathTimes are when the broker itself moved the message from queue to queue.
func deathTimes(h rabbit.Table) (times []time.Time) {
	deaths, _ := h["x-death"].([]any)
	for _, d := range deaths {
		death, _ := d.(rabbit.Table)
		if at, ok := death["time"].(time.Time); ok {
			times = append(times, at)
		}
	}
	return times
}

// entry is what the letter leaves in its row. A dead row has it all.
func (lt *letter) entry() dedup.Entry {
	e := dedup.Entry{Key: lt.id.Key, BodyHash: lt.id.BodyHash, MessageID: lt.MessageID}
	if lt.row.Status != dedup.Dead || lt.former != nil {
		e.Body, e.Properties = lt.Body, wire.MarshalProperties(lt.Delivery)
	}
	return e
}
