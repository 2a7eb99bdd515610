package dedup

import "testing"

// A mark stands after the lease too, as long as nobody has taken it over.
func TestMarksOfManyClaimsStandUnlessTheirLeaseWasTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, entries := rowsNamed(100)
	claims, errs := w.log.ClaimAll(t.Context(), fresh(entries), "claim/1")
	for _, err := range errs {
		wantError(t, "claim", err, nil)
	}
	for _, e := range entries {
		w.older(e.Identity, testLease)
	}
	rows, err := w.log.LookUp(t.Context(), []Identity{entries[3].Identity})
	wantError(t, "look up", err, nil)
	if _, err := w.log.Claim(t.Context(), rows[entries[3].Identity], entries[3], "other/1"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // and repeated
		for i, err := range w.log.MarkAll(t.Context(), claims) {
			row := w.read(claims[i].Identity)
			if i == 3 {
				wantError(t, "mark what was taken over", err, ErrLost)
				if row.Version != (Version{Processing, 2, 0, "other/1"}) {
					t.Errorf("%v is %+v", claims[i].Identity, row)
				}
				continue
			}
			wantError(t, "mark", err, nil)
			if row.Version != claims[i].Applied() || row.Body != nil || row.Properties != nil {
				t.Fatalf("%v is %+v", claims[i].Identity, row)
			}
		}
	}
	if events := w.events(claims[0].Identity); len(events) != 2 {
		t.Errorf("the story of a repeated mark: %+v", events)
	}
}
