package deadletter

import (
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestTheOutcomeOfAReplayedLetterFollowsItsRow(t *testing.T) {
	for name, tc := range map[string]struct {
		version dedup.Version
		want    fate
	}{
		"waits":                       {dedup.Version{Status: dedup.Failed, Replays: 2}, noneYet},
		"first attempt":               {dedup.Version{Status: dedup.Processing, Attempts: 1, Replays: 2}, noneYet},
		"applied":                     {dedup.Version{Status: dedup.Success, Attempts: 1, Replays: 2}, applied},
		"an attempt failed":           {dedup.Version{Status: dedup.Failed, Attempts: 1, Replays: 2}, failedAgain},
		"second attempt":              {dedup.Version{Status: dedup.Processing, Attempts: 2, Replays: 2}, failedAgain},
		"dead again":                  {dedup.Version{Status: dedup.Dead, Attempts: 3, Replays: 2}, failedAgain},
		"dead, never attempted":       {dedup.Version{Status: dedup.Dead, Replays: 2}, failedAgain},
		"discarded":                   {dedup.Version{Status: dedup.Discarded, Replays: 2}, elsewhere},
		"replayed by another run":     {dedup.Version{Status: dedup.Failed, Replays: 3}, elsewhere},
		"dead after another's":        {dedup.Version{Status: dedup.Dead, Replays: 3}, elsewhere},
		"applied after another's":     {dedup.Version{Status: dedup.Success, Replays: 3}, elsewhere},
		"pruned":                      {dedup.Version{Status: dedup.Absent}, elsewhere},
		"a status of another version": {dedup.Version{Status: 9, Replays: 2}, elsewhere},
	} {
		assert.Is(t, outcomeOf(dedup.Row{Version: tc.version}, 2), tc.want, "%s", name)
	}
}

func TestALetterIsDroppedOnlyWhenItsMessageIsElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		status                dedup.Status
		row, letter, sentWith int // replays
		want                  bool
	}{
		"applied":                           {dedup.Success, 3, 2, 3, true},
		"its body was mended":               {dedup.Discarded, 0, 0, 0, true},
		"waits in the main queue":           {dedup.Failed, 3, 2, 3, true},
		"is attempted":                      {dedup.Processing, 3, 2, 3, true},
		"made since, its row not yet dead":  {dedup.Failed, 3, 3, 3, false},
		"made since, while it is attempted": {dedup.Processing, 3, 3, 3, false},
		"dead again":                        {dedup.Dead, 3, 2, 3, false},
		"reopened by another run":           {dedup.Failed, 4, 2, 3, false},
		"not published by this run":         {dedup.Failed, 3, 2, 0, false},
		"no row":                            {dedup.Absent, 0, 0, 0, false},
	} {
		row := dedup.Row{Version: dedup.Version{Status: tc.status, Replays: tc.row}}
		assert.Is(t, isSuperseded(row, tc.letter, tc.sentWith), tc.want, "%s", name)
	}
}
