package operator

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/stock"
)

// Means says in a sentence or two what a disagreement of this kind is; "" of a kind that this version does not know.
func (k FindingKind) Means() string { return known[k].means }

// known says of a kind what it is, and what a machine may do about it if nothing hinders that; a person must mend the
// others.
var known = map[FindingKind]struct {
	means  string
	repair Repair
	does   string
}{
	LetterWithoutRow: {"A letter is in the dead-letter queue, and the log does not know its message.", RepairAdopt,
		"Its letter is filed as dead in the log, so that it can be replayed or discarded like any other."},
	StaleLetter: {"A letter's message has ended already. It does no harm; the next replay drops it.", RepairReplay,
		"The letter is dropped from the dead-letter queue."},
	DeadWithoutLetter: {"The row says dead, and no letter is in the queue: it was purged, or moved by hand.",
		RepairRepublish, "The message is sent again, from its row. It has no second effect."},
	EffectUnknown: {means: "The log of the consumer before rollbackd left it open, and was taken over. Whether it " +
		"had its effect is not known; a person must find out."},
	Overdue: {"An attempt should have begun long ago. No daemon runs, or the last copy of the message is gone. One " +
		"whose remark says \"put off\" is what the handler's service does not take.", RepairRepublish,
		"The message is sent again, from its row. Do this when a daemon runs and the main queue is empty: else it " +
			"is only waiting. It has no second effect."},
	InterruptedReplay: {"A replay reopened the row and was cut off before it sent the message; its letter is still " +
		"there.", RepairReplay, "The replay that was cut off is ended: the message is sent again and its letter dropped."},
	ReleasedWithoutSuccess: {"A message gave the stock back, and the log does not show it as success.", RepairAdopt,
		"The success row is written again, which the reservation proves."},
	SuccessNotReleased: {means: "The message of this order is success, and the order still has something reserved."},
	NamedNotReleased:   {means: "A reservation names the message that released it, and is not released."},
	NegativeStock:      {means: "Less than nothing is on stock."},
}

// Advice is what is said of a finding, on a page and to a program. The names of its JSON form are stable.
type Advice struct {
	Means  string `json:"means"` // what it is
	Repair Repair `json:"repair,omitempty"`
	Does   string `json:"does,omitempty"` // what the repair would do; "" when a person must mend it
	Risk   string `json:"risk,omitempty"` // what a person must be sure of first; "": nothing
	Cure   string `json:"cure,omitempty"` // what to do, as commands
}

// Advice says of the finding what it is and what mends it, for a program that is called name.
func (f *Finding) Advice(name string, now time.Time) Advice {
	by, risk := f.Repair()
	a := Advice{Means: f.Kind.Means(), Repair: by, Risk: risk, Cure: f.Cure(name, now)}
	if by != NoRepair {
		a.Does = known[f.Kind].does
	}
	return a
}

// Cure is the command that mends the finding, for a program that is called name. It is pure.
func (f *Finding) Cure(name string, now time.Time) string {
	key := dedup.Identity{Tag: f.Tag, Key: f.Key}
	adopt, republish := name+" reconcile --adopt", name+" reconcile --republish"
	replay := name + " dlq replay " + ChosenBy(key)
	look := fmt.Sprintf("%s log explain %s --tag %s", name, ShellWord(f.Key), ShellWord(f.Tag))
	if strings.HasPrefix(f.Key, "-") { // else it would be taken for a flag
		look = fmt.Sprintf("%s log explain --tag %s -- %s", name, ShellWord(f.Tag), ShellWord(f.Key))
	}
	switch f.Kind {
	case LetterWithoutRow:
		switch deadletter.Why(f.Hindrance) {
		case "":
			return adopt
		case deadletter.WhyKeyTaken:
			return adopt + " --force    # another body had its key and that row is gone: make sure first that this one may " +
				"take effect too"
		}
		return adopt + " --force    # it may have had its effect, and its row be deleted since: make sure first that it " +
			"had not"
	case StaleLetter, InterruptedReplay:
		return replay
	case DeadWithoutLetter, Overdue:
		switch {
		case f.Hindrance == LetterRefused:
			return look + "    # it failed for good, and its letter waits for room in the dead-letter queue: see there"
		case f.Hindrance != "":
			return fmt.Sprintf("%s dlq replay --from FILE    # with the whole message from its producer, because %s", name,
				f.Hindrance)
		case f.Kind == Overdue:
			return republish + "    # when a daemon runs and the main queue is empty: else it is only waiting"
		}
		return republish
	case EffectUnknown:
		return fmt.Sprintf("%s dlq export --reason %s -o open.ndjson    # then, of each line: did it have its effect? "+
			"dlq discard --from, or dlq replay --from", name, dedup.ReasonEffectUnknown)
	case ReleasedWithoutSuccess:
		switch f.Status {
		case dedup.Absent.String():
			return adopt
		case dedup.Dead.String():
			return replay + "    # it finds the stock given back, and ends without a second effect"
		case dedup.Discarded.String():
			return look + "    # a person ended it although it had its effect: nothing needs to be done but to know it"
		}
		return name + " run    # its next attempt finds the stock given back, and ends without a second effect"
	case SuccessNotReleased:
		return f.publishCure(name, now)
	case NamedNotReleased:
		if f.Was == stock.Reserved {
			return f.publishCure(name, now)
		}
		return fmt.Sprintf("UPDATE stock_reservation SET rollback_tag = NULL, rollback_key = NULL WHERE order_sn = x'%x' "+
			"AND sku_id = %d"+
			"    -- in MySQL; and take the goods off the stock again if they have left", f.Order, f.SKU)
	case NegativeStock:
		return fmt.Sprintf("UPDATE stock SET amount = …, version = version + 1 WHERE sku_id = %d    -- in MySQL, after "+
			"counting the goods", f.SKU)
	}
	return look
}

// repairTag is the tag of the messages that publishCure sends. With the tag of the message that is success, and a key
// that ROLLBACKD_KEY_FROM takes from the order's number, they would have its identity and end as conflict.
const repairTag = "repair"

// publishCure sends a message of its own that gives back what is still reserved, under an identity that nobody has had.
// It is printf, because echo turns \b and \n into other characters in some shells.
func (f *Finding) publishCure(name string, now time.Time) string {
	body, err := json.Marshal(struct {
		Order  string `json:"order_sn"`
		Reason string `json:"reason"`
		Items  []Item `json:"items"`
		Repair string `json:"repair"`
	}{f.Order, "reconcile", f.Items, fmt.Sprintf("repair/%s/%s", f.Order, now.UTC().Format("20060102T150405Z"))})
	if err != nil {
		return err.Error() // cannot be: text and integers
	}
	return fmt.Sprintf(`printf '%%s\n' '%s' | %s publish --key-field repair --tag %s`, strings.ReplaceAll(
		string(screen.JSON(body)), "'", `'\''`), name, repairTag)
}

// Reservation is the status of its reservation, and its sku, in words.
func (f *Finding) Reservation() string {
	switch {
	case f.SKU != 0 && f.Was != "":
		return fmt.Sprintf("%s, sku %d", f.Was, f.SKU)
	case f.SKU != 0:
		return fmt.Sprintf("sku %d", f.SKU)
	}
	return f.Was
}

// Outcome says whether it was mended, or why not; "" when nothing stands in the way and nothing was tried.
func (f *Finding) Outcome() string {
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
