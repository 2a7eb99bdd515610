package consumer

import (
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
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
	ordinary := circumstances{LetterOf: -1}
	for name, tc := range map[string]struct {
		row  dedup.Row
		c    circumstances
		want verdict
	}{
		"no row, never delivered": {row(dedup.Absent, 0), ordinary, runFresh},
		"no row, one reconnect": {row(dedup.Absent, 0), circumstances{Deliveries: 1, LetterOf: -1},
			runFresh},
		"no row, delivered twice before": {row(dedup.Absent, 0), circumstances{Deliveries: 2, LetterOf: -1},
			runAlone},
		"no row, unreadable": {row(dedup.Absent, 0), circumstances{Unreadable: true,
			LetterOf: -1}, bury},
		"no row, unreadable, often delivered": {row(dedup.Absent, 0),
			circumstances{Deliveries: 9, Unreadable: true, LetterOf: -1}, bury},
		"success": {row(dedup.Success, 1), ordinary, skipDone},
		"success, often delivered": {row(dedup.Success, 1), circumstances{Deliveries: 9, LetterOf: -1},
			skipDone},
		"dead":                                {row(dedup.Dead, 5), ordinary, skipDead},
		"dead, its letter moved by hand":      {row(dedup.Dead, 5), circumstances{LetterOf: 2}, reopen},
		"dead, an older letter moved by hand": {row(dedup.Dead, 5), circumstances{LetterOf: 1}, skipDead},
		"dead, a copy of its last replay":     {row(dedup.Dead, 5), circumstances{LetterOf: -1, Replays: 2}, skipDead},
		"dead, a copy of a replay that the row does not know": {row(dedup.Dead, 5),
			circumstances{LetterOf: -1, Replays: 3}, reopen},
		"discarded":                                   {row(dedup.Discarded, 5), ordinary, skipDead},
		"discarded, its letter moved by hand":         {row(dedup.Discarded, 5), circumstances{LetterOf: 2}, skipDead},
		"processing, lease lives":                     {live(row(dedup.Processing, 1)), ordinary, comeBack},
		"processing, lease lives, last attempt":       {live(row(dedup.Processing, 5)), ordinary, comeBack},
		"processing, lease expired":                   {row(dedup.Processing, 4), ordinary, takeOver},
		"processing, lease expired, no attempts left": {row(dedup.Processing, 5), ordinary, exhaust},
		"processing, lease expired, no attempts left, claimed with others": {
			func(r dedup.Row) dedup.Row { r.Owner = "host/1/2/3/4" + dedup.MarkGroup; return r }(row(dedup.Processing, 5)),
			ordinary, forgive},
		"processing, lease expired, claimed with others": {
			func(r dedup.Row) dedup.Row { r.Owner = "host/1/2/3/4" + dedup.MarkGroup; return r }(row(dedup.Processing, 4)),
			ordinary, takeOver},
		"failed, not due": {row(dedup.Failed, 1), ordinary, comeBack},
		"failed, due":     {known(due(row(dedup.Failed, 1))), ordinary, runAgain},
		"failed, due, came back once": {known(due(row(dedup.Failed, 1))), circumstances{Deliveries: 1, LetterOf: -1},
			runAlone},
		"failed, due, unreadable": {known(due(row(dedup.Failed, 1))), circumstances{Unreadable: true, LetterOf: -1},
			runAlone},
		"failed, due, its take-over was given back":      {known(marked(due(row(dedup.Failed, 1)))), ordinary, runAlone},
		"failed, due, its row knows no message":          {due(row(dedup.Failed, 1)), ordinary, runAlone},
		"failed, no attempts left, its letter not there": {row(dedup.Failed, 5), ordinary, giveUp},
		"failed for good, attempts left":                 {condemned(due(row(dedup.Failed, 1))), ordinary, giveUp},
		"failed for good, not due":                       {condemned(row(dedup.Failed, 0)), ordinary, giveUp},
		"crashed, more attempts allowed since":           {crashed(known(due(row(dedup.Failed, 4)))), ordinary, runAlone},
		"a status of a newer version":                    {row(dedup.Status(9), 0), ordinary, comeBack},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decide(tc.row, tc.c, maxAttempts); got != tc.want {
				t.Errorf("decide = %v, want %v", got, tc.want)
			}
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
		if got := fit(delays, tc.wait); got != tc.want {
			t.Errorf("fit(%v) = %v, want %v", tc.wait, got, tc.want)
		}
	}
}

func TestTroubleIsAMessagesFaultOnlyWhenOthersSucceed(t *testing.T) {
	t.Run("while nothing succeeds it is never blamed", func(t *testing.T) {
		var s strikes
		for i := range 100 {
			if _, blamed := s.blamed(dedup.Identity{}, 7); blamed {
				t.Fatalf("blamed at trouble %d although nothing else was applied", i+1)
			}
		}
	})
	t.Run("the third trouble with successes between is its own", func(t *testing.T) {
		var s strikes
		for i, applied := range []uint64{1, 2, 2, 3} {
			if _, blamed := s.blamed(dedup.Identity{}, applied); blamed != (i == 3) {
				t.Errorf("trouble %d: blamed = %v", i+1, blamed)
			}
		}
	})
}
