package cli

import "testing"

// Given rows of several ages, when they are pruned, then what would go is shown first, and what is old and has ended
// goes.
func TestPruneShowsWhatGoesAndDeletesIt(t *testing.T) { played(t, "prune") }
