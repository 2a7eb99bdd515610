package decide

import (
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestTheRowDecidesWhatHappensToAMessage(t *testing.T) {
	const maxAttempts = 5
	row := func(s dedup.Status, attempts int) dedup.Row {
		return dedup.Row{Version: dedup.Version{Status: s, Attempts: attempts, Replays: 2}}
	}
	condemned := func(r dedup.Row) dedup.Row { r.Reason = "permanent"; return r }
	crashed := func(r dedup.Row) dedup.Row { r.Reason = dedup.ReasonCrashed; return r }
	live := func(r dedup.Row) dedup.Row { r.LeaseLive = true; return r }
	due := func(r dedup.Row) dedup.Row { r.Due = true; return r }
	known := func(r dedup.Row) dedup.Row { r.BodyHash = make([]byte, 32); return r }
	marked := func(r dedup.Row) dedup.Row { r.Owner = "host/1/2/3/4" + dedup.MarkAlone; return r }
	owned := func(attempts int, mark string) dedup.Row {
		r := known(row(dedup.Processing, attempts))
		r.Owner = "host/1/2/3/4" + mark
		return r
	}
	putOff := func(r dedup.Row) dedup.Row { r.Remark = "put off: too early"; return r }
	came := func(deliveries int) Circumstances { return Circumstances{LetterOf: -1, Deliveries: deliveries} }
	ordinary, often, unreadable := came(0), came(2), Circumstances{Unreadable: true, LetterOf: -1}
	absent, success, dead, discarded := row(dedup.Absent, 0), row(dedup.Success, 1), row(dedup.Dead, 5),
		row(dedup.Discarded, 5)
	reopened, failed := known(due(row(dedup.Failed, 0))), known(due(row(dedup.Failed, 1)))
	for name, tc := range map[string]struct {
		row  dedup.Row
		c    Circumstances
		want Verdict
	}{
		"no row, never delivered":        {absent, ordinary, RunFresh},
		"no row, one reconnect":          {absent, came(1), RunFresh},
		"no row, delivered twice before": {absent, came(2), RunAlone},
		"no row, unreadable":             {absent, unreadable, Bury},
		"no row, unreadable, often delivered": {
			absent, Circumstances{LetterOf: -1, Deliveries: 9, Unreadable: true}, Bury,
		},
		"success":                                        {success, ordinary, SkipDone},
		"success, often delivered":                       {success, came(9), SkipDone},
		"dead":                                           {dead, ordinary, SkipDead},
		"dead, its letter moved by hand":                 {dead, Circumstances{LetterOf: 2}, Reopen},
		"dead, an older letter moved by hand":            {dead, Circumstances{LetterOf: 1}, SkipDead},
		"dead, a copy of its last replay":                {dead, Circumstances{LetterOf: -1, Replays: 2}, SkipDead},
		"dead, a copy of a replay unknown to its row":    {dead, Circumstances{LetterOf: -1, Replays: 3}, Reopen},
		"discarded":                                      {discarded, ordinary, SkipDead},
		"discarded, its letter moved by hand":            {discarded, Circumstances{LetterOf: 2}, SkipDead},
		"lease lives":                                    {live(row(dedup.Processing, 1)), ordinary, ComeBack},
		"lease lives, last attempt":                      {live(row(dedup.Processing, 5)), ordinary, ComeBack},
		"lease expired":                                  {row(dedup.Processing, 4), ordinary, TakeOver},
		"lease expired, no attempts left":                {row(dedup.Processing, 5), ordinary, Exhaust},
		"lease expired, none left, claimed with others":  {owned(5, dedup.MarkGroup), ordinary, Forgive},
		"lease expired, claimed with others":             {owned(4, dedup.MarkGroup), ordinary, TakeOverGroup},
		"lease expired, with others, came back twice":    {owned(4, dedup.MarkGroup), often, TakeOver},
		"lease expired, taken over with others":          {owned(2, dedup.MarkOrphans), ordinary, Forgive},
		"lease expired, taken over alone":                {owned(2, dedup.MarkAlone), ordinary, TakeOver},
		"failed, not due":                                {row(dedup.Failed, 1), ordinary, ComeBack},
		"failed, due":                                    {failed, ordinary, RunAgain},
		"reopened":                                       {reopened, ordinary, RunReopened},
		"reopened, and put off since":                    {putOff(reopened), ordinary, RunAgain},
		"reopened, came back twice":                      {reopened, often, RunAlone},
		"reopened after it lost a process":               {marked(reopened), ordinary, RunAlone},
		"failed, due, came back once":                    {failed, came(1), RunAgain},
		"failed, due, came back twice":                   {failed, came(2), RunAlone},
		"failed, due, unreadable":                        {failed, unreadable, RunAlone},
		"failed, due, its take-over was given back":      {known(marked(due(row(dedup.Failed, 1)))), ordinary, RunAlone},
		"failed, due, its row knows no message":          {due(row(dedup.Failed, 1)), ordinary, RunAlone},
		"failed, no attempts left, its letter not there": {row(dedup.Failed, 5), ordinary, GiveUp},
		"failed for good, attempts left":                 {condemned(due(row(dedup.Failed, 1))), ordinary, GiveUp},
		"failed for good, not due":                       {condemned(row(dedup.Failed, 0)), ordinary, GiveUp},
		"crashed, more attempts allowed since":           {crashed(known(due(row(dedup.Failed, 4)))), ordinary, RunAlone},
		"a status of a newer version":                    {row(dedup.Status(9), 0), ordinary, ComeBack},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Is(t, OfRow(tc.row, tc.c, maxAttempts), tc.want, "OfRow")
		})
	}
}

func TestACopyThatComesTooEarlyWaitsInTheLongestQueueThatFits(t *testing.T) {
	delays := []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}
	for _, tc := range []struct{ wait, want time.Duration }{
		{0, time.Second},
		{-time.Second, time.Second},
		{999 * time.Millisecond, time.Second},
		{time.Second, time.Second},
		{29 * time.Second, 5 * time.Second},
		{30 * time.Second, 30 * time.Second},
		{time.Hour, 30 * time.Second},
	} {
		assert.Is(t, Fit(delays, tc.wait), tc.want, "Fit(%v)", tc.wait)
	}
}

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
