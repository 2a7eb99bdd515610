package consumer

import (
	"errors"
	"testing"
)

func TestTheEndOfATransactionDecidesWhatFollowsForItsGroup(t *testing.T) {
	boom := errors.New("boom")
	some := map[int]error{0: boom}
	tooLate := told{finish: failed, blamed: some, late: true}
	const fast, claimed = false, true
	for name, tc := range map[string]struct {
		n       int
		claimed bool
		told    told
		late    bool
		want    sequel
	}{
		"committed":                               {9, fast, told{finish: committed, blamed: some}, false, endApplied},
		"committed, claimed":                      {9, claimed, told{finish: committed, blamed: some}, false, endApplied},
		"met a row":                               {9, fast, told{finish: moved}, false, lookAtRows},
		"met a row, one":                          {1, fast, told{finish: moved}, false, lookAtRows},
		"no answer":                               {9, fast, told{finish: unsure}, false, lookAtRows},
		"some blamed":                             {9, fast, told{finish: failed, blamed: some}, false, goOnWithout},
		"late, and some blamed":                   {9, fast, tooLate, false, goOnWithout},
		"all failed":                              {9, fast, told{finish: failed}, false, halve},
		"all too late":                            {9, fast, told{finish: failed, late: true}, false, halve},
		"one failed":                              {1, fast, told{finish: failed}, false, charge},
		"one too late":                            {1, fast, told{finish: failed, late: true}, false, goApart},
		"many met others":                         {fewAtOnce + 1, fast, told{finish: met}, false, halve},
		"few met others":                          {fewAtOnce, fast, told{finish: met}, false, single},
		"one met others":                          {1, fast, told{finish: met}, false, putOff},
		"many met others in an old batch":         {9, fast, told{finish: met}, true, putOff},
		"too large":                               {9, fast, told{finish: slow}, false, halve},
		"one too large":                           {1, fast, told{finish: slow}, false, goApart},
		"some blamed, claimed":                    {9, claimed, told{finish: failed, blamed: some}, false, goOnWithout},
		"late, some blamed, claimed":              {9, claimed, tooLate, false, goApart},
		"all failed, claimed":                     {9, claimed, told{finish: failed}, false, goApart},
		"met others, claimed":                     {9, claimed, told{finish: met}, true, goApart},
		"no answer, claimed":                      {9, claimed, told{finish: unsure}, false, goApart},
		"rows are somebody else's, claimed":       {9, claimed, told{finish: moved}, false, goApart},
		"alone, its row is somebody else's":       {1, claimed, told{finish: moved}, false, loseLease},
		"alone, failed":                           {1, claimed, told{finish: failed, blamed: some}, false, charge},
		"alone, failed too late":                  {1, claimed, told{finish: failed, late: true}, false, charge},
		"alone, met others":                       {1, claimed, told{finish: met}, false, putOff},
		"alone, slow, and others did not succeed": {1, claimed, told{finish: slow}, false, putOff},
	} {
		t.Run(name, func(t *testing.T) {
			g := group{items: make([]*item, tc.n)}
			if got := g.next(tc.told, tc.claimed, tc.late); got != tc.want {
				t.Errorf("next = %d, want %d", got, tc.want)
			}
		})
	}
}
