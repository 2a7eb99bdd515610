package dedup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestTheEventFeedIsReadInItsOrderAndFromTheBookmarkOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// given a log that had a story before anybody asked
	wantError(t, "dead", w.log.Dead(t.Context(), absent(key("old")), entryOf(key("old")), "malformed", "no"), nil)
	at, err := w.log.Bookmark(t.Context(), "g")
	wantError(t, "bookmark", err, nil)
	// when things happen
	wantError(t, "dead", w.log.Dead(t.Context(), absent(key("a")), entryOf(key("a")), "malformed", "no"), nil)
	_, err = w.log.Reopen(t.Context(), w.read(key("a")), entryOf(key("a")), ReplayNote{By: "me", Token: "r"})
	wantError(t, "reopen", err, nil)
	feed, err := w.log.EventFeed(t.Context(), at, 10)
	wantError(t, "feed", err, nil)
	want := []FeedEvent{{Identity: key("a"), From: Absent, To: Dead}, {Identity: key("a"), From: Dead, To: Failed,
		Replays: 1}}
	if diff := cmp.Diff(want, feed, cmpopts.IgnoreFields(FeedEvent{}, "ID", "Age")); diff != "" {
		t.Errorf("feed (-want +got):\n%s", diff)
	}
	if feed[0].ID <= at || feed[1].ID <= feed[0].ID {
		t.Errorf("ids %d and %d after %d do not grow", feed[0].ID, feed[1].ID, at)
	}
	if some, err := w.log.EventFeed(t.Context(), at, 1); err != nil || len(some) != 1 {
		t.Errorf("one of them: %v, %v", some, err)
	}
	// then the bookmark moves on, and never back
	for _, step := range []int64{feed[1].ID, feed[0].ID} {
		wantError(t, "move", w.log.MoveBookmark(t.Context(), "g", step), nil)
	}
	if got, err := w.log.Bookmark(t.Context(), "g"); err != nil || got != feed[1].ID {
		t.Errorf("the bookmark is at %d (%v), want %d", got, err, feed[1].ID)
	}
	// and ten is more than nine, as a number
	wantError(t, "move", w.log.MoveBookmark(t.Context(), "g", 9_999_999), nil)
	wantError(t, "move", w.log.MoveBookmark(t.Context(), "g", 10_000_000), nil)
	if got, err := w.log.Bookmark(t.Context(), "g"); err != nil || got != 10_000_000 {
		t.Errorf("the bookmark is at %d (%v), want 10000000", got, err)
	}
	// and every group has its own
	other := strings.Repeat("x", MaxGroup)
	if got, err := w.log.Bookmark(t.Context(), other); err != nil || got != feed[1].ID {
		t.Errorf("another group begins at %d (%v), want %d", got, err, feed[1].ID)
	}
}
