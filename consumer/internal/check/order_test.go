package check

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// locks are rows in an order; what ends with ? is perhaps none.
func locks(rows string) (all []Lock) {
	for name := range strings.FieldsSeq(rows) {
		row, perhaps := strings.CutSuffix(name, "?")
		all = append(all, Lock{Rows: row, Perhaps: perhaps})
	}
	return all
}

// Given two transactions one after the other, then they are told to cross if they could lock each other out: when the
// first row that both lock is not the same.
func TestTwoOrdersCrossWhenTheirFirstCommonRowDiffers(t *testing.T) {
	for name, tc := range map[string]struct{ one, other, want string }{
		"two rows":                          {"a b", "b a", "b a"},
		"among others":                      {"x a y b z", "b q a", "b a"},
		"of three":                          {"a b c", "c a b", "c a"},
		"the same order":                    {"a b c", "a c", ""},
		"one row before both":               {"g a b", "g b a", ""},
		"one that was locked before":        {"a b a", "a b", ""},
		"nothing in common":                 {"a b", "c d", ""},
		"one in common":                     {"a b", "b c", ""},
		"a message in common":               {"m1 a b", "m0 m1 b a", ""},
		"a locking SELECT before both":      {"g? a b", "g? b a", ""},
		"a locking SELECT may lock nothing": {"a b?", "b? a", ""},
	} {
		var o Orders
		if _, _, crossed := o.Add(locks(tc.one)); crossed {
			t.Errorf("%s: a first transaction crosses", name)
		}
		first, then, crossed := o.Add(locks(tc.other))
		if got := first.Rows + " " + then.Rows; crossed != (tc.want != "") || crossed && got != tc.want {
			t.Errorf("%s: crossed %v, %q, want %q", name, crossed, got, tc.want)
		}
	}
}

// Given more transactions than are remembered, then the oldest are forgotten, and the last ones are not.
func TestTheLastOrdersAreRemembered(t *testing.T) {
	var o Orders
	o.Add(locks("a b"))
	o.Add(locks("c d"))
	for range mostOrders - 1 {
		o.Add(locks("x y"))
	}
	_, _, crossed := o.Add(locks("b a"))
	assert.That(t, !crossed, "what is forgotten crosses")
	_, _, crossed = o.Add(locks("y x"))
	assert.That(t, crossed, "the last ones are forgotten")
	assert.Is(t, len(o.last), mostOrders, "are remembered")
}
