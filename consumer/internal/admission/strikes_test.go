package admission

import (
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
)

func TestTroubleIsAMessagesFaultOnlyWhenOthersSucceed(t *testing.T) {
	t.Run("while nothing succeeds it is never blamed", func(t *testing.T) {
		var s Strikes
		for i := range 100 {
			if _, blamed := s.Blamed(dedup.Identity{}, 7); blamed {
				t.Fatalf("blamed at trouble %d although nothing else was applied", i+1)
			}
		}
	})
	t.Run("the third trouble with successes between is its own", func(t *testing.T) {
		var s Strikes
		for i, applied := range []uint64{1, 2, 2, 3} {
			if _, blamed := s.Blamed(dedup.Identity{}, applied); blamed != (i == 3) {
				t.Errorf("trouble %d: blamed = %v", i+1, blamed)
			}
		}
	})
}
