package operator_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/lock"
)

func TestEveryStateOfARowAndEveryReasonHasAMeaning(t *testing.T) {
	names := operator.Names{Queue: "q", MaxAttempts: 5, Program: "rollbackd"}
	row := func(status dedup.Status, attempts int) dedup.Row {
		return dedup.Row{Identity: dedup.Identity{Group: "g", Tag: "t", Key: "it's"},
			Version: dedup.Version{Status: status, Attempts: attempts}, Wait: 3 * time.Second}
	}
	live, due, reopened := row(dedup.Processing, 2), row(dedup.Failed, 2), row(dedup.Failed, 0)
	putOff, asked, refused := row(dedup.Failed, 0), row(dedup.Failed, 1), row(dedup.Failed, 1)
	refused.Reason = dedup.ReasonMalformed
	putOff.Remark, asked.Remark, asked.Wait, asked.Due = "put off: closed", "put off: 429", 0, true
	live.LeaseLive, due.Due, reopened.Replays = true, true, 1
	for _, tc := range map[string]struct {
		row         dedup.Row
		means, next string
	}{
		"success":        {row(dedup.Success, 1), "is committed", "Nothing."},
		"discarded":      {row(dedup.Discarded, 1), "A person ended it", "Nothing."},
		"live":           {live, "attempt 2 right now; its lease ends in 3s", "Wait."},
		"expired":        {row(dedup.Processing, 2), "The next copy takes it over", "daemon running?"},
		"expired, spent": {row(dedup.Processing, 5), "the last one, ended without a result", "daemon running?"},
		"waiting": {row(dedup.Failed, 2), "Attempt 2 of 5 failed, see remark; the next one is due in 3s",
			"mend the cause"},
		"put off":  {putOff, "has put it off, see remark. No attempt is counted; it comes again in 3s", "Wait"},
		"asked":    {asked, "again and again, or is away", "longest retry delay"},
		"due":      {due, "the next one is due.", "daemon running?"},
		"spent":    {row(dedup.Failed, 5), "No attempt is left", "daemon running?"},
		"reopened": {reopened, "waits in q", "still in q.dead: `rollbackd dlq replay --tag t --key 'it'\\''s'`"},
		"dead": {row(dedup.Dead, 5), "confirmed in q.dead, and it had no effect: all 5 attempts failed",
			"then `rollbackd dlq replay --tag t --key 'it'\\''s'`"},
		"refused": {refused, "It failed for good (malformed, see remark) and gets no further attempt; q.dead does not take " +
			"its letter yet, and its delivery is held until then", ""},
		"unknown": {row(9, 1), "does not know the status", "Use the version that wrote it."},
	} {
		means, next := operator.Meaning(tc.row, names)
		assert.Has(t, means, tc.means, "%+v", tc.row)
		assert.Has(t, next, tc.next, "%+v", tc.row)
	}
	seen := map[string]dedup.Reason{}
	for _, reason := range dedup.Reasons() {
		dead := row(dedup.Dead, 5)
		dead.Reason = reason
		means, _ := operator.Meaning(dead, names)
		other, ok := seen[means]
		assert.That(t, !ok, "%s means the same as %s: %q", reason, other, means)
		seen[means] = reason
	}
}

func TestLocksAreToldInWords(t *testing.T) {
	for want, s := range map[string]lock.State{
		"free":                          {},
		"done marker, for another 4m":   {Hold: lock.DoneMarker, TTL: 4 * time.Minute},
		"done marker, without an end: ": {Hold: lock.DoneMarker, TTL: -1},
		"a value that is not":           {Hold: lock.Foreign, TTL: time.Second},
		"held by me, for another 5s":    {Hold: lock.HeldByOther, Token: "me", TTL: 5 * time.Second},
		"held by me, without an end: ":  {Hold: lock.HeldByOther, Token: "me", TTL: -1},
	} {
		assert.Is(t, strings.HasPrefix(operator.LockText(s), want), true, "lock %q begins %q", operator.LockText(s), want)
	}
}

func TestOfEachKindOfActItIsSaidInWordsWhatItIsOn(t *testing.T) {
	for _, test := range []struct {
		kind         operator.Kind
		detail, want string
	}{
		{operator.KindOutboxDrop, `{"kind":"outbox_drop","filter":{},"all":true,"force":true}`, "--all --force"},
		{operator.KindOutboxDrop, "odd", "odd"},
		{operator.KindExpected, `{"publish":true,"force":true,"why":"a lost backup"}`, "force, publish, why a lost backup"},
		{operator.KindExpected, `{"publish":false}`, ""},
		{operator.KindEdit, `{"tag":"t","key":"k","sent":{"tag":"t","key":"k/edited-1"}}`,
			"tag t, key k, sent as tag t, key k/edited-1"},
		{operator.KindReconcile, "null", ""},
		{operator.KindReconcile, "", ""},
	} {
		act := operator.Act{Kind: test.kind, Detail: json.RawMessage(test.detail)}
		assert.Is(t, act.Subject(), test.want, "%s of %s is on", test.kind, test.detail)
	}
}
