package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// nameSource is an export of which only the names are read: for an end that needs no message.
type nameSource struct{ *fileSource }

func (s *nameSource) next(ctx context.Context) ([]*letter, error) {
	s.make = s.name
	return s.fileSource.next(ctx)
}

// name makes a letter that is nothing but a name.
func (s *nameSource) name(text []byte) (ln Line, lt *letter, why Why, err error) {
	if err := json.Unmarshal(text, &ln); err != nil {
		return ln, nil, WhyBadLine, fmt.Errorf("is no line of an export: %w", err)
	}
	id := dedup.Identity{Group: s.l.o.Group, Tag: ln.Tag, Key: ln.Key}
	switch {
	case ln.Tag == "" || ln.Key == "":
		return ln, nil, WhyBadLine, errors.New("is no line of an export: it has no tag or no key")
	case ln.Group != "" && ln.Group != s.l.o.Group:
		return ln, nil, WhyOtherIdentity, s.otherGroup(ln)
	}
	if err := id.Validate(); err != nil {
		return ln, nil, WhyBadLine, fmt.Errorf("names no row: %w", err)
	}
	named := wire.Identified{Identity: id}
	lt = &letter{own: named, id: named, formerRow: absent, stored: true}
	lt.Body = ln.Body // to choose by, if the line has it
	return ln, lt, "", nil
}

func (s *nameSource) lookUp(ctx context.Context, letters []*letter) error {
	return s.look(ctx, letters, func(ctx context.Context, letters []*letter, _ bool) error {
		rows, err := s.l.o.Records.LookUp(ctx, keysOf(letters, func(lt *letter) dedup.Identity { return lt.id.Identity }))
		for _, lt := range letters {
			lt.row = rows[lt.id.Identity]
		}
		return err
	})
}

func (s *nameSource) judge(lt *letter) (verdict, Why) { return s.byRow.judge(lt) }
