package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// life is one identity going its way, each call with the row as the one before left it.
type life struct {
	*world
	Identity
	claim Claim
	calls map[string]func() (Row, error) // the last one of each name, with its arguments
}

// play makes the calls, each "name argument" or "name argument: error", and says what goes otherwise. A row that a call
// returns must be the one that stands in the table.
func (l *life) play(calls []string) {
	l.t.Helper()
	l.calls = map[string]func() (Row, error){}
	for _, line := range calls {
		call, wrong, _ := strings.Cut(line, ": ")
		left, err := l.call(call)
		want := map[string]error{"lost": ErrLost, "stale": ErrStale, "exists": ErrExists, "transition": ErrTransition}[wrong]
		require.That(l.t, errors.Is(err, want) && (want != nil || err == nil), "%s = %v, want %v", line, err, want)
		if is := l.read(l.Identity); left.Status == Failed && (left.Version != is.Version || left.Reason != is.Reason ||
			left.Remark != is.Remark || left.Due != is.Due || !bytes.Equal(left.BodyHash, is.BodyHash)) {
			l.t.Errorf("%s returned %+v, the row is %+v", line, left, is)
		}
	}
}

func (l *life) call(text string) (Row, error) {
	name, arg, _ := strings.Cut(text, " ")
	from, e, ctx := l.read(l.Identity), entryOf(l.Identity), l.t.Context()
	reason, cause, _ := strings.Cut(arg, " ")
	claim := l.claim
	again := func(f func() (Row, error)) (Row, error) {
		l.calls[name] = f
		return f()
	}
	none := func(f func() error) (Row, error) { return again(func() (Row, error) { return Row{}, f() }) }
	switch name {
	case "again": // as after a lost answer
		return l.calls[arg]()
	case "after":
		d, err := time.ParseDuration(arg)
		l.older(l.Identity, d)
		return Row{}, err
	case "forget": // as rows of former versions may have it
		l.exec("UPDATE consumer_log SET msg_id = NULL, msg_body = NULL, properties = NULL, body_hash = NULL")
		return Row{}, nil
	case "copy": // has other headers than the message it was made from
		e.MessageID, e.Body, e.Properties = "copy", []byte("copy"), []byte(`{"copy":true}`)
		fallthrough
	case "claim":
		return none(func() (err error) { l.claim, err = l.log.Claim(ctx, from, e, arg); return err })
	case "raised": // by somebody whose maximum is higher
		more := *l.log
		more.o.MaxAttempts++
		return none(func() (err error) { l.claim, err = more.Claim(ctx, from, e, arg); return err })
	case "fail":
		return again(func() (Row, error) { return first(l.log.FailAll(ctx, []Failure{{Claim: claim, Cause: arg}})) })
	case "unclaim":
		return none(func() error { return l.log.UnclaimAll(ctx, []Claim{claim})[0] })
	case "put-off":
		return none(func() error { return l.log.PutOffAll(ctx, []Failure{{Claim: claim, Cause: arg}})[0] })
	case "success":
		return none(func() error { return l.success(claim) })
	case "mark":
		return none(func() error { return l.log.MarkAll(ctx, []Claim{claim})[0] })
	case "blame":
		return again(func() (Row, error) {
			return first(l.log.BlameAll(ctx, []Blamed{{Entry: e, Cause: cause}}, string(reason)))
		})
	case "exhaust":
		return again(func() (Row, error) { return l.log.Exhaust(ctx, from) })
	case "forgive":
		return again(func() (Row, error) { return l.log.Forgive(ctx, from) })
	case "condemn":
		if from.Status == Processing {
			from = claim.Row()
		}
		return again(func() (Row, error) { return l.log.Condemn(ctx, from, e, Reason(reason), cause, "worker") })
	case "die", "dead":
		if name == "die" {
			from = claim.Row()
		}
		return none(func() error { return l.log.Dead(ctx, from, e, Reason(reason), cause) })
	case "reopen", "revive":
		note := ReplayNote{By: "ann", Filter: "--all", Token: arg, Discarded: name == "revive"}
		return again(func() (Row, error) { return l.log.Reopen(ctx, from, e, note) })
	case "discard":
		return none(func() error { return l.log.Discard(ctx, from, e, "ann", arg) })
	case "adopt":
		return none(func() error { return l.log.Adopt(ctx, e, 0, Reason(reason), cause, "ann") })
	case "applied":
		return none(func() error { return l.log.AdoptSuccess(ctx, l.pool, l.Identity, "ann", arg) })
	case "park", "parked":
		return none(func() error {
			marked, err := l.log.Park(ctx, from, "ann", arg)
			if err == nil && marked != (name == "park") {
				err = fmt.Errorf("marked is %v", marked)
			}
			return err
		})
	}
	return Row{}, fmt.Errorf("no call %q", text)
}

// String is the row in short.
func (l *life) String() string {
	r, e := l.read(l.Identity), entryOf(l.Identity)
	text := fmt.Sprintf("%v %d/%d %s", r.Status, r.Attempts, r.Replays, r.Owner)
	add := func(is bool, word string) {
		if is {
			text += ", " + word
		}
	}
	hash := bytes.Equal(r.BodyHash, e.BodyHash[:])
	whole := r.MessageID == e.MessageID && bytes.Equal(r.Body, e.Body) && bytes.Equal(r.Properties, e.Properties) && hash
	add(r.LeaseLive, "live")
	add(r.Due, "due")
	add(r.PutOff() && r.Age >= time.Hour, "since long")
	add(r.PutOff() && r.At.Equal(r.CreatedAt), "since it was made")
	add(r.Reason != "", string(r.Reason))
	add(!r.DeadAt.IsZero(), "buried")
	add(whole, "whole")
	add(hash && r.Body == nil && r.Properties == nil, "hash")
	add(r.MessageID == "copy" && string(r.Body) == "copy" && string(r.Properties) == `{"copy":true}` && hash, "a copy")
	add(r.Remark != "", r.Remark)
	return text
}

// Each way that an identity goes ends in the row that the calls promise, and its story has a line of each step.
func TestEachWayEndsInItsRow(t *testing.T) {
	w := newWorld(t)
	const crashed = "attempt 3 by c ended without a result: its lease is over"
	for name, c := range map[string]struct {
		calls []string
		row   string
		story string
	}{
		"a claim keeps the message": {[]string{"claim a"}, "processing 1/0 a, live, whole", "absent>processing 1/0"},
		"success forgets the body, and not its hash: a conflict must be seen": {
			[]string{"claim a", "success"}, "success 1/0 a, hash", "absent>processing 1/0, processing>success 1/0",
		},
		"a mark stands after the lease too, and is told once": {
			[]string{"claim a", "after 3h", "mark", "again mark"}, "success 1/0 a, hash",
			"absent>processing 1/0, processing>success 1/0",
		},
		"blamed once by each who is asked, and by nobody else": {
			[]string{"blame o boom", "again blame", "blame p boom: lost"}, "failed 1/0 o, whole, boom",
			"absent>failed 1/0: boom",
		},
		"the first copy is the one that is kept": {
			[]string{"claim a", "fail boom", "after 1h", "copy b"}, "processing 2/0 b, live, whole, boom",
			"absent>processing 1/0, processing>failed 1/0: boom, failed>processing 2/0",
		},
		"a row without its message takes the next copy": {
			[]string{"claim a", "unclaim", "forget", "copy b"}, "processing 1/0 b, live, a copy",
			"absent>processing 1/0, processing>failed 0/0, failed>processing 1/0",
		},
		"failed waits": {
			[]string{"claim a", "fail boom"}, "failed 1/0 a, whole, boom", "absent>processing 1/0, processing>failed 1/0: boom",
		},
		"failed is due after nine tenths of its delay": {
			[]string{"claim a", "fail boom", "after 53m", "claim b: lost", "after 1m"}, "failed 1/0 a, due, whole, boom",
			"absent>processing 1/0, processing>failed 1/0: boom",
		},
		"given back it is due at once, counts nothing, and keeps the last error": {
			[]string{"claim a", "fail boom", "after 1h", "claim b", "unclaim"}, "failed 1/0 b, due, whole, boom",
			"absent>processing 1/0, processing>failed 1/0: boom, failed>processing 2/0, processing>failed 1/0",
		},
		"put off again and again it keeps the time of its failure, and its story has one line of that": {
			[]string{"claim a", "fail boom", "after 2h", "claim b", "put-off busy", "claim c", "put-off still busy"},
			"failed 1/0 c, due, since long, whole, put off: still busy",
			"absent>processing 1/0, processing>failed 1/0: boom, failed>processing 2/0, processing>failed 1/0: put off: busy",
		},
		"put off from its first attempt on it keeps the time when it was made": {
			[]string{"claim a", "put-off busy", "claim b", "put-off still busy"},
			"failed 0/0 b, due, since it was made, whole, put off: still busy",
			"absent>processing 1/0, processing>failed 0/0: put off: busy",
		},
		"exhausted waits for its letter": {
			[]string{"claim a", "after 3h", "claim b", "after 3h", "claim c", "after 3h", "claim d: lost", "exhaust",
				"after 100h", "claim d: lost"}, "failed 3/0 c, due, crashed, whole, " + crashed,
			"absent>processing 1/0, processing>processing 2/0, processing>processing 3/0, processing>failed 3/0: " + crashed,
		},
		"exhausted gets what more is allowed": {
			[]string{"claim a", "after 3h", "claim b", "after 3h", "claim c", "after 3h", "exhaust", "after 3h", "raised d",
				"unclaim"}, "failed 3/0 d, due, whole, " + crashed,
			"absent>processing 1/0, processing>processing 2/0, processing>processing 3/0, processing>failed 3/0: " + crashed +
				", failed>processing 4/0, processing>failed 3/0",
		},
		"what is to run alone is claimed with its mark only": {
			[]string{"claim a", "after 3h", "claim b", "after 3h", "claim c/group", "after 3h", "forgive", "claim d/group: lost",
				"claim d: lost", "claim e/alone"}, "processing 3/0 e/alone, live, whole",
			"absent>processing 1/0, processing>processing 2/0, processing>processing 3/0, processing>failed 2/0: attempt 3, " +
				"which was claimed together with others, ended without a result: it is made again, alone, failed>processing 3/0",
		},
		"what was taken over with others is forgiven while attempts are left": {
			[]string{"claim a/group", "after 3h", "forgive: lost", "claim b/group/alone", "after 3h", "forgive",
				"claim c/group: lost", "claim d/alone"}, "processing 2/0 d/alone, live, whole",
			"absent>processing 1/0, processing>processing 2/0, processing>failed 1/0: attempt 2, " +
				"which was claimed together with others, ended without a result: it is made again, alone, failed>processing 2/0",
		},
		"a repeated call is done, and told once": {
			[]string{"claim a", "again claim", "fail boom", "again fail", "after 1h", "claim b", "again claim", "unclaim",
				"again unclaim", "reopen r", "again reopen"}, "failed 0/1 r, due, whole, boom",
			"absent>processing 1/0, processing>failed 1/0: boom, failed>processing 2/0, processing>failed 1/0, " +
				"failed>failed 0/1 by ann: replayed --all",
		},
		"a reopen is not known again once the row went on": {
			[]string{"reopen mine", "claim a", "again reopen: lost"}, "processing 1/1 a, live, whole",
			"absent>failed 0/1 by ann: replayed --all, failed>processing 1/1",
		},
		"condemned gets no attempt": {
			[]string{"condemn permanent no order", "after 4h", "claim b: lost"},
			"failed 0/0 worker, due, permanent, whole, no order", "absent>failed 0/0: no order",
		},
		"condemned under its claim gets none, and dies of what it was condemned for": {
			[]string{"claim a", "condemn permanent no order", "after 4h", "claim b: lost", "dead permanent no order"},
			"dead 1/0 a, permanent, buried, whole, no order",
			"absent>processing 1/0, processing>failed 1/0: no order, failed>dead 1/0: no order",
		},
		"condemned is forgiven by a replay": {
			[]string{"condemn permanent no order", "reopen r", "claim b"}, "processing 1/1 b, live, whole, no order",
			"absent>failed 0/0: no order, failed>failed 0/1 by ann: replayed --all, failed>processing 1/1",
		},
		"dead without a row": {
			[]string{"dead malformed bad"}, "dead 0/0 , malformed, buried, whole, bad", "absent>dead 0/0: bad",
		},
		"dead under its claim": {
			[]string{"claim a", "die permanent bad"}, "dead 1/0 a, permanent, buried, whole, bad",
			"absent>processing 1/0, processing>dead 1/0: bad",
		},
		"dead after a failure, then replayed": {
			[]string{"claim a", "fail boom", "dead permanent bad", "reopen r"}, "failed 0/1 r, due, whole, bad",
			"absent>processing 1/0, processing>failed 1/0: boom, failed>dead 1/0: bad, dead>failed 0/1 by ann: replayed --all",
		},
		"discarded stays so, unless it is asked for": {
			[]string{"dead malformed bad", "discard a test", "discard x: stale", "reopen r: stale"},
			"discarded 0/0 , malformed, buried, whole, discarded by ann: a test",
			"absent>dead 0/0: bad, dead>discarded 0/0 by ann: a test",
		},
		"discarded and revived": {
			[]string{"discard a test", "revive r"}, "failed 0/1 r, due, whole, discarded by ann: a test",
			"absent>discarded 0/0 by ann: a test, discarded>failed 0/1 by ann: replayed --all",
		},
		"a letter is adopted once": {
			[]string{"adopt exhausted no row", "adopt exhausted no row: lost"}, "dead 0/0 , exhausted, buried, whole, no row",
			"absent>dead 0/0 by ann: no row",
		},
		"an effect is adopted once, and overwrites nothing": {
			[]string{"applied released", "applied released: exists"}, "success 1/0 , released",
			"absent>success 1/0 by ann: released",
		},
		"parked is marked once, and moves nothing": {
			[]string{"dead permanent bad", "park after 3 replays", "parked after 3 replays"},
			"dead 0/0 , permanent, buried, whole, parked after 3 replays: bad",
			"absent>dead 0/0: bad, dead>dead 0/0 by ann: parked after 3 replays",
		},
		"what is not dead is not parked": {[]string{"park after 3 replays: transition"}, "absent 0/0 ", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := &life{world: w, Identity: key(name)}
			w.t = t
			l.play(c.calls)
			assert.Is(t, l.String(), c.row, "row")
			assert.Is(t, w.story(l.Identity), c.story, "story")
		})
	}
}

// What the columns do not hold is cut, or refused before anything is written.
func TestWhatDoesNotFitIsCutOrRefused(t *testing.T) {
	w := newWorld(t)
	ctx, k, long := t.Context(), key("k"), strings.Repeat
	claim := func(k Identity, owner string) error {
		_, err := w.log.Claim(ctx, absent(k), entryOf(k), owner)
		return err
	}
	condemn := func(reason Reason, owner string) error {
		_, err := w.log.Condemn(ctx, absent(k), entryOf(k), reason, "", owner)
		return err
	}
	dead := func(k Identity, reason Reason) error { return w.log.Dead(ctx, absent(k), entryOf(k), reason, "") }
	for what, err := range map[string]error{
		"no reason": dead(k, ""), "a long reason": dead(k, Reason(long("r", MaxReason+1))),
		"a reason that is no text": dead(k, "\xff"), "condemned for nothing": condemn("", "o"),
		"condemned by nobody": condemn("permanent", ""), "no owner": claim(k, ""),
		"a long owner": claim(k, long("o", MaxOwner+1)),
	} {
		assert.That(t, err != nil && !errors.Is(err, ErrLost), "%s was taken: %v", what, err)
	}
	for _, bad := range []Identity{
		{long("g", MaxGroup+1), "t", "k"}, {"g", long("t", MaxTag+1), "k"}, {"", "t", "k"}, {"g", "", "k"}, key(""),
		key(long("é", 128)), key("a\x00"), key("a\nb"), key("a\x7f"), key("a\u0085"), key("a\xff"), key("\xed\xa0\x80"),
	} {
		assert.Error(t, claim(bad, "o"), ErrIdentity, "claim %v", bad)
		assert.Error(t, w.insertSuccess(entryOf(key("good")), entryOf(bad)), ErrIdentity, "insert %v", bad)
		assert.Error(t, dead(bad, "malformed"), ErrIdentity, "dead %v", bad)
	}
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log"), 0, "rows")

	e := entryOf(k)
	e.MessageID, e.Body = long("m", 300), bytes.Repeat([]byte("b"), MaxBody+1)
	e.Properties = bytes.Repeat([]byte("p"), MaxProperties+1)
	c := require.Get(w.log.Claim(ctx, absent(k), e, long("o", MaxOwner)))(t)
	row := w.fail(c, long("é😀", 900)+"\xff")
	got := w.read(k)
	if n := []rune(got.Remark); got.Remark != row.Remark || len(n) != MaxRemark || n[len(n)-1] != '…' {
		t.Errorf("remark has %d characters and ends in %q", len(n), n[len(n)-1])
	}
	assert.That(t, len(got.MessageID) == MaxMessageID && len(got.Body) == MaxBody && got.Properties == nil,
		"kept %d bytes of id, %d of body, %d of properties", len(got.MessageID), len(got.Body), len(got.Properties))
	row = w.fail(w.claimAt(key("bad utf-8")), "a\xffb")
	assert.That(t, row.Remark == "a\uFFFDb" && w.read(row.Identity).Remark == row.Remark, "remark %q", row.Remark)
}
