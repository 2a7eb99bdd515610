package deadletter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// identify says who a message is by what it says of itself; its error is why that is unusable and it is filed.
func (l *Letters) identify(d rabbit.Delivery) (wire.Identified, error) {
	return wire.Identify(l.o.Group, l.keyFrom, l.o.Queue, d)
}

func (l *Letters) read(t taken) *letter {
	own, err := l.identify(t.Delivery)
	return &letter{taken: t, own: own, id: own, filed: err != nil, info: wire.ReadCopy(t.Headers), formerRow: absent}
}

// lookUp finds the rows of letters. One whose key is taken by another body belongs to the row under which its conflict
// is filed. One that was filed under a key of ours and can be identified by now, because KEY_FROM was corrected, also
// has the row of its former identity; where that one has ended and the new one has no row, the letter has ended with
// it.
func (l *Letters) lookUp(ctx context.Context, letters []*letter, discardedToo bool) error {
	rows, err := l.o.Records.LookUp(ctx, unique(mapped(letters, func(lt *letter) dedup.Identity {
		return lt.own.Identity
	})))
	if err != nil {
		return err
	}
	filed := map[*letter][]dedup.Identity{} // the former identities that a letter may have
	var more []dedup.Identity
	for _, lt := range letters {
		lt.id, lt.row = lt.own, rows[lt.own.Identity]
		if lt.filed {
			continue
		}
		taken := differs(lt)
		former := lt.row.Status == dedup.Absent || lt.info.Reason == dedup.ReasonUnidentified ||
			lt.info.Reason == dedup.ReasonConflict
		if !taken && !former {
			continue
		}
		conflict, _ := wire.Conflict(lt.own, lt.Body) // its error is the remark of a new row
		if taken {
			lt.id = conflict
			more = append(more, conflict.Identity)
		}
		if former {
			filed[lt] = l.formerKeys(lt)
			if !taken {
				filed[lt] = append(filed[lt], conflict.Identity)
			}
			more = append(more, filed[lt]...)
		}
	}
	if len(more) == 0 {
		return nil
	}
	if rows, err = l.o.Records.LookUp(ctx, unique(more)); err != nil {
		return err
	}
	for _, lt := range letters {
		if lt.id.Identity != lt.own.Identity {
			lt.row = rows[lt.id.Identity]
		}
		lt.wasFiled(filed[lt], rows, discardedToo)
	}
	return nil
}

// wasFiled looks for a letter's former identity among the keys under which it may have been filed.
func (lt *letter) wasFiled(keys []dedup.Identity, rows map[dedup.Identity]dedup.Row, discardedToo bool) {
	for _, key := range keys {
		row := rows[key]
		lt.conflicted = lt.conflicted || key.Tag == wire.TagConflict && row.Status != dedup.Absent
		switch {
		case lt.formerRow.Status == dedup.Absent && isOpen(row):
			lt.formerRow = row
		case lt.row.Status == dedup.Absent && row.Status == dedup.Discarded && (!discardedToo || wasEdited(row)):
			lt.id.Identity, lt.row = key, row
		}
	}
}

// differs reports whether the row belongs to another body. It is asked before the status, and only of a committed row.
func differs(lt *letter) bool {
	return len(lt.row.BodyHash) > 0 && !bytes.Equal(lt.row.BodyHash, lt.own.BodyHash[:])
}

// isOpen reports whether a former row still waits to be ended.
func isOpen(row dedup.Row) bool {
	return row.Status == dedup.Dead || row.Status == dedup.Failed || row.Status == dedup.Processing && !row.LeaseLive
}

// formerKeys are the keys under which a letter that is identified now can have been filed when it was not. Which source
// was unusable then is not known, so all that the message has are tried.
func (l *Letters) formerKeys(lt *letter) []dedup.Identity {
	const most = 200 // sources that are tried
	names := []string{"property:message_id", "property:correlation_id", "body:sha256"}
	if _, ok := rabbit.ReadUnreadable(lt.Headers); ok {
		names = append(names, "header:any") // whichever it was, nobody could read it
	}
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
func (l *Letters) filedKey(keys []dedup.Identity, d rabbit.Delivery, sources []wire.KeySource) []dedup.Identity {
	id, err := wire.Identify(l.o.Group, sources, l.o.Queue, d)
	if _, filed := errors.AsType[*wire.FiledError](err); filed {
		return append(keys, id.Identity)
	}
	return keys
}

// mapped is what f makes of each.
func mapped[A, B any](all []A, f func(A) B) []B {
	made := make([]B, len(all))
	for i, one := range all {
		made[i] = f(one)
	}
	return made
}

func (lt *letter) identity() dedup.Identity { return lt.id.Identity }

func unique(keys []dedup.Identity) []dedup.Identity {
	slices.SortFunc(keys, dedup.Identity.Compare)
	return slices.Compact(keys)
}
