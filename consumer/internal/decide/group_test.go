package decide

import (
	"errors"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestTheEndOfATransactionDecidesWhatFollowsForItsGroup(t *testing.T) {
	boom := errors.New("boom")
	some := map[int]error{0: boom}
	tooLate := Told{End: Failed, Blamed: some, Late: true}
	const fast, claimed = false, true
	for name, tc := range map[string]struct {
		n       int
		claimed bool
		told    Told
		late    bool
		want    Sequel
	}{
		"committed":                               {9, fast, Told{End: Committed, Blamed: some}, false, Applied},
		"committed, claimed":                      {9, claimed, Told{End: Committed, Blamed: some}, false, Applied},
		"met a row":                               {9, fast, Told{End: Moved}, false, LookAtRows},
		"met a row, one":                          {1, fast, Told{End: Moved}, false, LookAtRows},
		"no answer":                               {9, fast, Told{End: Unsure}, false, LookAtRows},
		"some blamed":                             {9, fast, Told{End: Failed, Blamed: some}, false, GoOnWithout},
		"late, and some blamed":                   {9, fast, tooLate, false, GoOnWithout},
		"all failed":                              {9, fast, Told{End: Failed}, false, Halve},
		"all too late":                            {9, fast, Told{End: Failed, Late: true}, false, Halve},
		"one failed":                              {1, fast, Told{End: Failed}, false, Charge},
		"one too late":                            {1, fast, Told{End: Failed, Late: true}, false, GoApart},
		"many met others":                         {FewAtOnce + 1, fast, Told{End: Met}, false, Halve},
		"few met others":                          {FewAtOnce, fast, Told{End: Met}, false, Single},
		"one met others":                          {1, fast, Told{End: Met}, false, PutOff},
		"many met others in an old batch":         {9, fast, Told{End: Met}, true, PutOff},
		"too large":                               {9, fast, Told{End: Slow}, false, Halve},
		"one too large":                           {1, fast, Told{End: Slow}, false, GoApart},
		"some blamed, claimed":                    {9, claimed, Told{End: Failed, Blamed: some}, false, GoOnWithout},
		"late, some blamed, claimed":              {9, claimed, tooLate, false, GoApart},
		"all failed, claimed":                     {9, claimed, Told{End: Failed}, false, GoApart},
		"met others, claimed":                     {9, claimed, Told{End: Met}, true, GoApart},
		"no answer, claimed":                      {9, claimed, Told{End: Unsure}, false, GoApart},
		"rows are somebody else's, claimed":       {9, claimed, Told{End: Moved}, false, GoApart},
		"alone, its row is somebody else's":       {1, claimed, Told{End: Moved}, false, LoseLease},
		"alone, failed":                           {1, claimed, Told{End: Failed, Blamed: some}, false, Charge},
		"alone, failed too late":                  {1, claimed, Told{End: Failed, Late: true}, false, Charge},
		"alone, met others":                       {1, claimed, Told{End: Met}, false, PutOff},
		"alone, slow, and others did not succeed": {1, claimed, Told{End: Slow}, false, PutOff},
	} {
		t.Run(name, func(t *testing.T) {
			g := Group{Size: tc.n, Claimed: tc.claimed, Late: tc.late}
			assert.Is(t, g.Next(tc.told), tc.want, "Next")
		})
	}
}
