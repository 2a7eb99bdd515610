package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestSlowPathKeepsTheMessageUntilSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("order 1")

	claim := w.claim(absent(k), "a")

	row := w.read(k)
	e := entryOf(k)
	if !bytes.Equal(row.Body, e.Body) || !bytes.Equal(row.Properties, e.Properties) || row.MessageID != e.MessageID ||
		!bytes.Equal(row.BodyHash, e.BodyHash[:]) {
		t.Errorf("claimed row keeps %q %q %q %x", row.Body, row.Properties, row.MessageID, row.BodyHash)
	}
	if !row.LeaseLive || row.Due || row.Wait <= testLease-time.Minute || row.Wait > testLease {
		t.Errorf("claimed row: live %v, due %v, wait %v", row.LeaseLive, row.Due, row.Wait)
	}
	wantVersion(t, row, Version{Processing, 1, 0, "a"})

	wantError(t, "success", w.success(claim), nil)

	row = w.read(k)
	wantVersion(t, row, claim.Applied())
	if row.Body != nil || row.Properties != nil {
		t.Errorf("success keeps body %q and properties %q", row.Body, row.Properties)
	}
	if !bytes.Equal(row.BodyHash, e.BodyHash[:]) {
		t.Error("success forgot the body's hash: a conflict could not be seen")
	}
	if got, want := w.story(k), "absent>processing 1/0, processing>success 1/0"; got != want {
		t.Errorf("story: %s, want %s", got, want)
	}
}

// A copy has other headers than the message it was made from.
func TestFirstCopyOfAMessageIsTheOneThatIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	w.fail(w.claim(absent(k), "a"), "boom")
	w.older(k, testDelay)
	copied := entryOf(k)
	copied.MessageID, copied.Body, copied.Properties = "copy", []byte("copy"), []byte(`{"copy":true}`)
	if _, err := w.log.Claim(t.Context(), w.read(k), copied, "b"); err != nil {
		t.Fatal(err)
	}
	first, row := entryOf(k), w.read(k)
	if row.MessageID != first.MessageID || !bytes.Equal(row.Body, first.Body) ||
		!bytes.Equal(row.Properties, first.Properties) {
		t.Errorf("the row keeps %q %q %q", row.MessageID, row.Body, row.Properties)
	}

	w.exec("UPDATE consumer_log SET msg_id = NULL, msg_body = NULL, properties = NULL, body_hash = NULL")
	claim := Claim{Identity: k, Attempts: 2, Owner: "b"}
	wantError(t, "dead", w.log.Dead(t.Context(), claim.Row(), copied, "permanent", ""), nil)
	row = w.read(k)
	if row.MessageID != "copy" || string(row.Body) != "copy" || !bytes.Equal(row.Properties, copied.Properties) ||
		!bytes.Equal(row.BodyHash, copied.BodyHash[:]) {
		t.Errorf("a row without them keeps %q %q %q %x", row.MessageID, row.Body, row.Properties, row.BodyHash)
	}
}

func TestFailedRowIsDueAfterItsDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	row := w.fail(w.claim(absent(k), "a"), "boom")
	if row.Due || row.Wait != testDelay*9/10 || row.Remark != "boom" {
		t.Errorf("failed row: due %v, wait %v, remark %q", row.Due, row.Wait, row.Remark)
	}

	w.older(k, testDelay*9/10-time.Minute)
	_, err := w.log.Claim(t.Context(), w.read(k), entryOf(k), "b")
	wantError(t, "claim too early", err, ErrLost)
	if got := w.read(k); got.Due || got.Wait <= 0 || got.Wait > time.Minute {
		t.Errorf("shortly before: due %v, wait %v", got.Due, got.Wait)
	}

	w.older(k, time.Minute)
	if got := w.read(k); !got.Due || got.Wait != 0 {
		t.Errorf("then: due %v, wait %v", got.Due, got.Wait)
	}
	claim := w.claim(w.read(k), "b")
	if claim.Attempts != 2 || claim.Remark != "boom" {
		t.Errorf("second claim: %+v", claim)
	}
}

func TestUnclaimedRowIsDueAtOnceAndCountsNoAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	w.fail(w.claim(absent(k), "a"), "boom")
	w.older(k, testDelay)
	claim := w.claim(w.read(k), "b")

	wantError(t, "unclaim", w.log.Unclaim(t.Context(), claim), nil)

	row := w.read(k)
	wantVersion(t, row, Version{Failed, 1, 0, "b"})
	if !row.Due {
		t.Errorf("unclaimed row waits %v", row.Wait)
	}
	if row.Remark != "boom" {
		t.Errorf("remark %q, want the last real error", row.Remark)
	}
	if again := w.claim(row, "c"); again.Attempts != 2 {
		t.Errorf("next claim is attempt %d, want 2", again.Attempts)
	}
}

func TestExhaustedRowWaitsForItsLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	for i := range testMax {
		w.claim(w.read(k), fmt.Sprint("worker ", i))
		w.older(k, testLease)
	}
	row := w.read(k)
	_, err := w.log.Claim(t.Context(), row, entryOf(k), "one more")
	wantError(t, "claim without attempts left", err, ErrLost)

	row, err = w.log.Exhaust(t.Context(), row)

	wantError(t, "exhaust", err, nil)
	wantVersion(t, row, Version{Failed, testMax, 0, "worker 2"})
	if !strings.Contains(row.Remark, "attempt 3 by worker 2") || row.Remark != w.read(k).Remark {
		t.Errorf("remark %q, in the table %q", row.Remark, w.read(k).Remark)
	}
	if got := w.read(k); row.Reason != ReasonCrashed || got.Reason != ReasonCrashed || !got.DeadAt.IsZero() {
		t.Errorf("reason %q, in the table %q, dead at %v: no letter is confirmed yet", row.Reason, got.Reason, got.DeadAt)
	}
	w.older(k, 100*testDelay)
	_, err = w.log.Claim(t.Context(), w.read(k), entryOf(k), "one more")
	wantError(t, "claim of a failed row without attempts left", err, ErrLost)
	more := *w.log
	more.o.MaxAttempts++ // somebody raised it, and lowered it again
	claim, err := more.Claim(t.Context(), w.read(k), entryOf(k), "worker 3")
	wantError(t, "claim with one attempt more", err, nil)
	if got := w.read(k); got.Reason != "" {
		t.Errorf("a claimed row has reason %q", got.Reason)
	}
	wantError(t, "unclaim", w.log.Unclaim(t.Context(), claim), nil)
	row = w.read(k)
	wantError(t, "dead", w.log.Dead(t.Context(), row, entryOf(k), ReasonCrashed, row.Remark), nil)
	wantVersion(t, w.read(k), Version{Dead, testMax, 0, "worker 3"})
}

func TestEightWorkersClaimTenKeysOnceEach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const workers, keys, rounds = 8, 10, 5
	for round := range rounds {
		var mu sync.Mutex
		claimed := map[Identity][]string{}
		var wg sync.WaitGroup
		for n := range workers {
			wg.Go(func() {
				for i := range keys {
					k := key(fmt.Sprint("round ", round, " key ", (i+n)%keys)) // each in another order
					owner := fmt.Sprint("round ", round, " worker ", n)
					_, err := w.log.Claim(t.Context(), absent(k), entryOf(k), owner)
					switch {
					case err == nil:
						mu.Lock()
						claimed[k] = append(claimed[k], owner)
						mu.Unlock()
					case !errors.Is(err, ErrLost):
						t.Errorf("worker %d: %v", n, err)
					}
				}
			})
		}
		wg.Wait()
		if len(claimed) != keys {
			t.Errorf("%d keys claimed, want %d", len(claimed), keys)
		}
		for k, owners := range claimed {
			if len(owners) != 1 || w.read(k).Owner != owners[0] {
				t.Errorf("%v claimed by %v, row says %q", k, owners, w.read(k).Owner)
			}
		}
	}
}

func TestRepeatedCallIsDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	from := absent(k)
	w.claim(from, "a")
	claim := w.claim(from, "a") // as after a lost answer
	w.fail(claim, "boom")
	w.fail(claim, "boom")
	w.older(k, testDelay)
	from = w.read(k)
	claim = w.claim(from, "b")
	if again := w.claim(from, "b"); again.Attempts != claim.Attempts {
		t.Errorf("repeated claim is attempt %d, the first was %d", again.Attempts, claim.Attempts)
	}
	wantError(t, "unclaim", w.log.Unclaim(t.Context(), claim), nil)
	wantError(t, "unclaim again", w.log.Unclaim(t.Context(), claim), nil)
	from = w.read(k)
	note := ReplayNote{By: "me", Token: "r"}
	for range 2 {
		_, err := w.log.Reopen(t.Context(), from, entryOf(k), note)
		wantError(t, "reopen", err, nil)
	}
	want := "absent>processing 1/0, processing>failed 1/0, failed>processing 2/0, processing>failed 1/0, failed>failed 0/1"
	if got := w.story(k); got != want {
		t.Errorf("story: %s\nwant:  %s", got, want)
	}
}

// isCommit recognises the request that commits.
func isCommit(request []byte) bool { return bytes.HasSuffix(request, []byte("\x03COMMIT")) }

func TestCommitWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	direct := newWorld(t)
	proxy := stack.Proxy(t, stack.Addr(t, direct.dsn))
	w := worldOf(t, direct.dsn, open(t, proxy.Through(direct.dsn)))

	t.Run("a claim found to be ours is ours", func(t *testing.T) {
		lost := proxy.DropReply(isCommit)
		claim, err := w.log.Claim(t.Context(), absent(key("1")), entryOf(key("1")), "a")
		wantError(t, "claim", err, nil)
		<-lost
		wantVersion(t, direct.read(key("1")), claim.Row().Version)
	})
	t.Run("a claim that never reached the server is unknown, and repeated it is ours", func(t *testing.T) {
		lost := proxy.DropRequest(isCommit)
		_, err := w.log.Claim(t.Context(), absent(key("2")), entryOf(key("2")), "a")
		wantError(t, "claim", err, ErrUnknown)
		<-lost
		if got := mysqldb.Classify(err); got != mysqldb.FaultUnavailable {
			t.Errorf("fault %v, want unavailable", got)
		}
		w.claim(absent(key("2")), "a")
	})
	t.Run("a failure that never reached the server is unknown", func(t *testing.T) {
		claim := w.claim(absent(key("3")), "a")
		lost := proxy.DropRequest(isCommit)
		_, err := w.log.Fail(t.Context(), claim, "boom")
		wantError(t, "fail", err, ErrUnknown)
		<-lost
		wantVersion(t, direct.read(key("3")), claim.Row().Version)
	})
	t.Run("a success is cleared up with Holds", func(t *testing.T) {
		claim := w.claim(absent(key("4")), "a")
		lost := proxy.DropReply(isCommit)
		if err := w.success(claim); err == nil {
			t.Error("the COMMIT whose answer was lost reports success")
		}
		<-lost
		holds, err := w.log.Holds(t.Context(), claim.Identity, claim.Applied())
		if !holds || err != nil {
			t.Errorf("holds %v, %v", holds, err)
		}
		other := claim.Applied()
		other.Owner = "b"
		if holds, err := w.log.Holds(t.Context(), claim.Identity, other); holds || err != nil {
			t.Errorf("the success of another owner: holds %v, %v", holds, err)
		}
	})
}

func TestTextThatDoesNotFitIsCutCleanly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	e := entryOf(k)
	e.MessageID = strings.Repeat("m", 300)
	e.Body = bytes.Repeat([]byte("b"), MaxBody+1)
	e.Properties = bytes.Repeat([]byte("p"), MaxProperties+1)
	claim, err := w.log.Claim(t.Context(), absent(k), e, strings.Repeat("o", MaxOwner))
	wantError(t, "claim", err, nil)

	row := w.fail(claim, strings.Repeat("é😀", 900)+"\xff")

	got := w.read(k)
	if got.Remark != row.Remark || utf8.RuneCountInString(got.Remark) != MaxRemark || !strings.HasSuffix(got.Remark, "…") {
		t.Errorf("remark has %d characters and ends in %q", utf8.RuneCountInString(got.Remark),
			got.Remark[len(got.Remark)-6:])
	}
	if len(got.MessageID) != MaxMessageID || len(got.Body) != MaxBody || got.Properties != nil {
		t.Errorf("kept %d bytes of id, %d of body, %d of properties", len(got.MessageID), len(got.Body), len(got.Properties))
	}
	if row := w.fail(w.claimAt(key("bad utf-8")), "a\xffb"); row.Remark != "a\uFFFDb" ||
		w.read(row.Identity).Remark != row.Remark {
		t.Errorf("remark %q", row.Remark)
	}
	_, err = w.log.Claim(t.Context(), absent(k), e, strings.Repeat("o", MaxOwner+1))
	if err == nil || errors.Is(err, ErrLost) {
		t.Errorf("claim with an owner that must be cut = %v", err)
	}
	if _, err = w.log.Claim(t.Context(), absent(k), e, ""); err == nil {
		t.Error("a claim without an owner was taken")
	}
}

func (w *world) claimAt(k Identity) Claim { return w.claim(absent(k), "owner of "+k.Key) }

// Given rows without an attempt and with a failed one, when their claims are put off again and again, then each keeps
// the time that it had, no attempt is counted, its remark is the last cause, and its story has one line of them all.
func TestARowThatIsPutOffKeepsItsAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fresh, failed := key("fresh"), key("failed")
	w.fail(w.claim(absent(failed), "a"), "boom")
	w.older(failed, time.Hour)
	stands := w.read(failed).At
	claims := []Claim{w.claim(absent(fresh), "b"), w.claim(w.read(failed), "c")}
	for i := range 4 {
		cause := fmt.Sprintf("busy %d", i)
		for _, err := range w.log.PutOffAll(t.Context(), []Failure{{claims[0], cause}, {claims[1], cause}}) {
			wantError(t, "put off", err, nil)
		}
		a, b := w.read(fresh), w.read(failed)
		if !a.At.Equal(a.CreatedAt) || !b.At.Equal(stands) || !a.Due || !b.Due || !a.PutOff() || !b.PutOff() {
			t.Fatalf("round %d: %+v and %+v", i, a, b)
		}
		if a.Remark != "put off: "+cause || b.Remark != "put off: "+cause || a.Attempts != 0 || b.Attempts != 1 {
			t.Fatalf("round %d: %+v and %+v", i, a, b)
		}
		claims[0], claims[1] = w.claim(a, fmt.Sprint("d", i)), w.claim(b, fmt.Sprint("e", i))
	}
	w.fail(claims[0], "boom")
	wantError(t, "success", w.success(claims[1]), nil)
	if got, want := w.story(fresh), "absent>processing 1/0, processing>failed 0/0, processing>failed 1/0"; got != want {
		t.Errorf("story: %s, want %s", got, want)
	}
	if got, want := w.story(failed), "absent>processing 1/0, processing>failed 1/0, failed>processing 2/0, "+
		"processing>failed 1/0, processing>success 2/0"; got != want {
		t.Errorf("story: %s, want %s", got, want)
	}
}
