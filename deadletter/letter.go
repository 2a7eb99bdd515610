package deadletter

import (
	"bytes"
	"cmp"
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
	own       wire.Identified // by what it says of itself; filed under a key of ours when that is unusable
	filed     bool            // own is such a key
	id        wire.Identified // of the row it belongs to: own, or its conflict's
	info      wire.CopyInfo   // what its headers say, which only informs
	row       dedup.Row
	formerRow dedup.Row // the open row of a former identity, when KEY_FROM was corrected since; else Absent

	// conflicted: it was filed as conflict, whatever became of that row.
	conflicted bool

	line         *Line        // of the file that it comes from
	replacedBody *dedup.Entry // its body was mended: what becomes of the former one
	blockedBy    Why          // why it must not be replayed, whatever its row says
	stored       bool         // it was made from its row, which has it all

	followers []*letter // letters of the same message in the same pass
	why       Why       // why it stays; "" while it does not
	err       error     // more about that
}

var absent = dedup.Row{Version: dedup.Version{Status: dedup.Absent}}

// reason is why the letter is dead: the row says so, and where it does not, the header.
func (lt *letter) reason() dedup.Reason {
	if lt.row.Status == dedup.Dead && lt.row.Reason != "" {
		return lt.row.Reason
	}
	return cmp.Or(lt.formerRow.Reason, lt.info.Reason)
}

func (lt *letter) deadAt() time.Time {
	if lt.row.Status == dedup.Dead && !lt.row.DeadAt.IsZero() {
		return lt.row.DeadAt
	}
	return cmp.Or(lt.formerRow.DeadAt, lt.info.DeadAt)
}

// mayMatch is false when the letter cannot have one of the filter's keys, or has another body, whatever its row says:
// so a run for a few letters among many asks the database nothing about the others. A filed key begins with sha256:, of
// what is no matter.
func (lt *letter) mayMatch(f Filter) bool {
	if !bytes.Contains(lt.Body, []byte(f.Body)) || slices.ContainsFunc(f.fields(), func(field dedup.Field) bool {
		return !field.In(lt.own.Identity.Key, lt.Body)
	}) {
		return false
	}
	return len(f.Keys) == 0 || slices.ContainsFunc(f.Keys, func(key string) bool {
		return key == lt.own.Identity.Key || strings.HasPrefix(key, "sha256:")
	})
}

// matches reports whether the filter chooses the letter.
func (lt *letter) matches(f Filter) bool {
	named := func(want string, part func(dedup.Identity) string) bool {
		return want == "" || want == part(lt.id.Identity) || want == part(lt.own.Identity) ||
			lt.formerRow.Status != dedup.Absent && want == part(lt.formerRow.Identity)
	}
	died := lt.deadAt()
	byKey := func(k string) bool { return named(k, func(k dedup.Identity) string { return k.Key }) }
	return (len(f.Keys) == 0 || slices.ContainsFunc(f.Keys, byKey)) &&
		named(f.Tag, func(k dedup.Identity) string { return k.Tag }) &&
		(len(f.Reasons) == 0 || slices.Contains(f.Reasons, lt.reason())) &&
		(f.Since.IsZero() || !died.Before(f.Since)) &&
		(f.Until.IsZero() || died.Before(f.Until)) &&
		(f.Error == "" || strings.Contains(lt.lastError(), f.Error)) &&
		(f.Fingerprint == "" || Fingerprint(lt.lastError()) == f.Fingerprint) &&
		(f.due == nil || f.due(lt.row))
}

// lastError is why the letter's last attempt failed: the row says so, and where there is none, the header.
func (lt *letter) lastError() string {
	if lt.row.Status != dedup.Absent {
		return lt.row.Remark
	}
	return lt.info.Error
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

// entry is what the letter leaves in its row. A dead row has it all, unless it was taken over from another log and does
// not know its body.
func (lt *letter) entry() dedup.Entry {
	if lt.stored {
		return dedup.Entry{Identity: lt.id.Identity}
	}
	e := dedup.Entry{Identity: lt.id.Identity, BodyHash: lt.id.BodyHash, MessageID: lt.MessageID}
	if lt.row.Status != dedup.Dead || lt.replacedBody != nil || len(lt.row.BodyHash) == 0 {
		e.Body, e.Properties = lt.Body, wire.MarshalProperties(lt.Delivery)
	}
	return e
}

// message is what a replay sends.
func (l *Letters) message(lt *letter) rabbit.Publishing {
	o := wire.CopyOptions{Identity: lt.id, Replays: lt.row.Replays}
	return rabbit.Publishing{Key: l.o.Queue, Message: wire.Copy(lt.Delivery, l.o.Queue, o)}
}
