package deadletter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Missing says what it means that the letter of a row is gone. Hindrance is why the row does not hold its whole
// message, nil when it does. A row that is filed as conflict is superseded, and stands for nothing any more, when the
// row of its key has this very body by now, because somebody mended it. The row must come from Log.Read.
func (l *Letters) Missing(ctx context.Context, row dedup.Row) (superseded bool, hindrance, err error) {
	d, _, hindrance := l.kept(row)
	if row.Tag == wire.TagConflict && hindrance == nil {
		if _, superseded, err = l.holder(ctx, d); err != nil {
			err = fmt.Errorf("look for the row that has the key of %v: %w", row.Identity, err)
		}
	}
	return superseded, hindrance, err
}

// holder is the row that has the key of a message which is filed as conflict, and whether that row has its very body.
func (l *Letters) holder(ctx context.Context, d rabbit.Delivery) (row dedup.Row, superseded bool, err error) {
	own, _ := l.identify(d)
	rows, err := l.o.Records.LookUp(ctx, []dedup.Identity{own.Identity})
	row = rows[own.Identity]
	return row, bytes.Equal(row.BodyHash, own.BodyHash[:]), err
}

// kept makes the message anew from its row. It must be the very message that the row stands for, to the last byte.
func (l *Letters) kept(row dedup.Row) (rabbit.Delivery, wire.Identified, error) {
	var d rabbit.Delivery
	hash := sha256.Sum256(row.Body)
	switch {
	case row.Body == nil:
		return d, wire.Identified{}, errors.New("its row keeps no body")
	case len(row.BodyHash) > 0 && !bytes.Equal(row.BodyHash, hash[:]), len(row.BodyHash) == 0 &&
		len(row.Body) >= dedup.MaxBody:
		return d, wire.Identified{}, fmt.Errorf("its row keeps only the first %d bytes of its body", len(row.Body))
	}
	if isCut(row.Properties) {
		return d, wire.Identified{}, errors.New("its row keeps not all of its headers")
	}
	if len(row.Properties) > 0 {
		var err error
		if d, err = wire.UnmarshalProperties(row.Properties); err != nil {
			return d, wire.Identified{}, err
		}
	}
	d.Body = row.Body
	id, _ := l.identify(d) // one that is filed has a key too
	if row.Tag == wire.TagConflict {
		id, _ = wire.Conflict(id, d.Body)
	}
	if id.Identity != row.Identity {
		return d, id, fmt.Errorf("what its row keeps of it names another message, %v: ROLLBACKD_KEY_FROM was changed,"+
			" or its headers were too large to be kept", id.Identity)
	}
	return d, id, nil
}
