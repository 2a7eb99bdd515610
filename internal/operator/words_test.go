package operator_test

import (
	"encoding/json"
	"testing"

	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestOfEachKindOfActItIsSaidInWordsWhatItIsOn(t *testing.T) {
	for _, test := range []struct {
		kind         operator.Kind
		detail, want string
	}{
		{operator.KindReplay, `{"kind":"replay","filter":{"tag":"t","keys":["a"]},"limit":1}`, `key="a" tag="t", at most 1`},
		{operator.KindOutboxRetry, `{"filter":{"keys":["a","b"],"tag":"t"}}`, "--tag t --key a --key b"},
		{operator.KindOutboxDrop, `{"kind":"outbox_drop","filter":{},"all":true,"force":true}`, "--all --force"},
		{operator.KindOutboxDrop, "odd", "odd"},
		{operator.KindExpected, `{"publish":true,"force":true,"why":"a lost backup"}`, "force, publish, why a lost backup"},
		{operator.KindExpected, `{"publish":false}`, ""},
		{operator.KindMend, `{"adopt":true}`, "adopt"},
		{operator.KindPrune, `{"older_than":"24h0m0s"}`, "older than 24h0m0s"},
		{operator.KindPause, `{"seconds":3600,"until":"2026-11-27T04:00:00Z"}`, "seconds 3600, until 2026-11-27T04:00:00Z"},
		{operator.KindReconcile, "null", ""},
		{operator.KindReconcile, "", ""},
	} {
		act := operator.Act{Kind: test.kind, Detail: json.RawMessage(test.detail)}
		assert.Is(t, act.Subject(), test.want, "%s of %s is on", test.kind, test.detail)
	}
}
