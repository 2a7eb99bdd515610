package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/reconcile"
	"github.com/rollbackd/rollbackd/stock"
)

// whatItIs explains each kind of disagreement in a sentence or two.
var whatItIs = map[reconcile.Kind]string{
	reconcile.LetterWithoutRow:  "A letter is in the dead-letter queue, and the log does not know its message.",
	reconcile.StaleLetter:       "A letter's message has ended already. It does no harm; the next replay drops it.",
	reconcile.DeadWithoutLetter: "The row says dead, and no letter is in the queue: it was purged, or moved by hand.",
	reconcile.EffectUnknown: "The log of the consumer before rollbackd left it open, and was taken over. Whether it " +
		"had its effect is not known; a person must find out.",
	reconcile.Overdue: "An attempt should have begun long ago. No daemon runs, or the last copy of the " +
		"message is gone.",
	reconcile.InterruptedReplay: "A replay reopened the row and was cut off before it sent the message; its letter " +
		"is still there.",
	reconcile.ReleasedWithoutSuccess: "A message gave the stock back, and the log does not show it as success.",
	reconcile.SuccessNotReleased:     "The message of this order is success, and the order still has something reserved.",
	reconcile.NamedNotReleased:       "A reservation names the message that released it, and is not released.",
	reconcile.NegativeStock:          "Less than nothing is on stock.",
}

// cure is the command that mends a finding, for a program that is called name. It is pure.
func cure(f reconcile.Finding, name string, now time.Time) string {
	key := dedup.Identity{Tag: f.Tag, Key: f.Key}
	adopt, republish := name+" reconcile --adopt", name+" reconcile --republish"
	replay := name + " dlq replay " + chosenBy(key)
	explain := fmt.Sprintf("%s log explain %s --tag %s", name, shellWord(f.Key), shellWord(f.Tag))
	if strings.HasPrefix(f.Key, "-") { // else it would be taken for a flag
		explain = fmt.Sprintf("%s log explain --tag %s -- %s", name, shellWord(f.Tag), shellWord(f.Key))
	}
	switch f.Kind {
	case reconcile.LetterWithoutRow:
		switch deadletter.Why(f.Hindrance) {
		case "":
			return adopt
		case deadletter.WhyKeyTaken:
			return adopt + " --force    # another body had its key and that row is gone: make sure first that this one may " +
				"take effect too"
		}
		return adopt + " --force    # it may have had its effect, and its row be deleted since: make sure first that it " +
			"had not"
	case reconcile.StaleLetter, reconcile.InterruptedReplay:
		return replay
	case reconcile.DeadWithoutLetter, reconcile.Overdue:
		switch {
		case f.Hindrance == reconcile.LetterRefused:
			return explain + "    # it failed for good, and its letter waits for room in the dead-letter queue: see there"
		case f.Hindrance != "":
			return fmt.Sprintf("%s dlq replay --from FILE    # with the whole message from its producer, because %s", name,
				f.Hindrance)
		case f.Kind == reconcile.Overdue:
			return republish + "    # when a daemon runs and the main queue is empty: else it is only waiting"
		}
		return republish
	case reconcile.EffectUnknown:
		return fmt.Sprintf("%s dlq export --reason %s -o open.ndjson    # then, of each line: did it have its effect? "+
			"dlq discard --from, or dlq replay --from", name, dedup.ReasonEffectUnknown)
	case reconcile.ReleasedWithoutSuccess:
		switch f.Status {
		case dedup.Absent.String():
			return adopt
		case dedup.Dead.String():
			return replay + "    # it finds the stock given back, and ends without a second effect"
		case dedup.Discarded.String():
			return explain + "    # a person ended it although it had its effect: nothing needs to be done but to know it"
		}
		return name + " run    # its next attempt finds the stock given back, and ends without a second effect"
	case reconcile.SuccessNotReleased:
		return publishCure(f, name, now)
	case reconcile.NamedNotReleased:
		if f.Was == stock.Reserved {
			return publishCure(f, name, now)
		}
		return fmt.Sprintf("UPDATE stock_reservation SET rollback_tag = NULL, rollback_key = NULL WHERE order_sn = x'%x' "+
			"AND sku_id = %d"+
			"    -- in MySQL; and take the goods off the stock again if they have left", f.Order, f.SKU)
	case reconcile.NegativeStock:
		return fmt.Sprintf("UPDATE stock SET amount = …, version = version + 1 WHERE sku_id = %d    -- in MySQL, after "+
			"counting the goods", f.SKU)
	}
	return explain
}

// repairTag is the tag of the messages that publishCure sends. With the tag of the message that is success, and a key
// that ROLLBACKD_KEY_FROM takes from the order's number, they would have its identity and end as conflict.
const repairTag = "repair"

// publishCure sends a message of its own that gives back what is still reserved, under an identity that nobody has had.
// It is printf, because echo turns \b and \n into other characters in some shells.
func publishCure(f reconcile.Finding, name string, now time.Time) string {
	body, err := json.Marshal(struct {
		Order  string           `json:"order_sn"`
		Reason string           `json:"reason"`
		Items  []reconcile.Item `json:"items"`
		Repair string           `json:"repair"`
	}{f.Order, "reconcile", f.Items, fmt.Sprintf("repair/%s/%s", f.Order, now.UTC().Format("20060102T150405Z"))})
	if err != nil {
		return err.Error() // cannot be: text and integers
	}
	return fmt.Sprintf(`printf '%%s\n' '%s' | %s publish --key-field repair --tag %s`, strings.ReplaceAll(visible(body),
		"'", `'\''`), name, repairTag)
}

// visible is JSON with every character escaped that a terminal would not show.
func visible(text []byte) string {
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func reservationText(f reconcile.Finding) string {
	switch {
	case f.SKU != 0 && f.Was != "":
		return fmt.Sprintf("%s, sku %d", f.Was, f.SKU)
	case f.SKU != 0:
		return fmt.Sprintf("sku %d", f.SKU)
	}
	return f.Was
}

func resultText(f reconcile.Finding) string {
	switch {
	case f.Mended:
		return "mended"
	case f.Failure != "":
		return "not mended: " + f.Failure
	case f.Hindrance != "":
		return f.Hindrance
	}
	return ""
}

// curedReport is a report whose findings say the command that mends them.
type curedReport struct {
	reconcile.Report
	Findings []curedFinding `json:"findings"`
}

// Open counts the findings that are not mended.
func (r curedReport) Open() (n int) {
	for _, f := range r.Findings {
		if !f.Mended {
			n++
		}
	}
	return n
}

type curedFinding struct {
	reconcile.Finding
	Cure string `json:"cure,omitempty"`
}

func withCommands(r reconcile.Report, program string, now time.Time) curedReport {
	c := curedReport{Report: r, Findings: []curedFinding{}}
	for _, f := range r.Findings {
		one := curedFinding{Finding: f}
		if !f.Mended {
			one.Cure = cure(f, program, now)
		}
		c.Findings = append(c.Findings, one)
	}
	return c
}
