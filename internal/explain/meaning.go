package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Names are what a row does not say of its daemon, for words about it.
type Names struct {
	Queue       string // the main queue
	MaxAttempts int
	Program     string // as its commands are called
}

// Meaning says in words what a row means for its message and what to do about it. It is pure.
func Meaning(row dedup.Row, cfg Names) (means, next string) {
	name := cfg.Program
	const nothing = "Nothing."
	wait := row.Wait.Round(time.Second)
	switch row.Status {
	case dedup.Absent:
		return "The log does not know it, though a reservation names it: its row has outlived ROLLBACKD_LOG_RETENTION, or " +
				"somebody deleted it.",
			fmt.Sprintf("`%s reconcile` says whether it is too young for that.", name)
	case dedup.Success:
		if row.TakenOver() {
			return takenMeaning(row), nothing
		}
		return "Its effect is committed. Further copies are acked as duplicates, without an effect.", nothing
	case dedup.Discarded:
		return "A person ended it, see remark. Further copies are acked without an effect.", nothing
	case dedup.Dead:
		return deadMeaning(row, cfg)
	case dedup.Processing:
		switch {
		case row.LeaseLive:
			return fmt.Sprintf("A worker makes attempt %d right now; its lease ends in %v at the latest.", row.Attempts, wait),
				"Wait."
		case row.Attempts >= cfg.MaxAttempts:
			return fmt.Sprintf("Attempt %d, the last one, ended without a result. The next copy goes to the dead-letter queue "+
				"as crashed.", row.Attempts), "Is the daemon running? A redelivered copy comes by itself."
		}
		return fmt.Sprintf("Attempt %d ended without a result, most likely with its process. The next copy takes it over.",
			row.Attempts), "Is the daemon running? A redelivered copy comes by itself."
	case dedup.Failed:
		switch {
		case row.Condemned():
			return fmt.Sprintf("It failed for good (%s, see remark) and gets no further attempt; %s does not take its letter "+
					"yet, and its delivery is held until then.",
					row.Reason, rabbit.DeadQueue(cfg.Queue)),
				fmt.Sprintf("Make room in %s, or make it again with `%s migrate`; the daemon's log and /readyz say what RabbitMQ "+
					"answers.", rabbit.DeadQueue(cfg.Queue), name)
		case row.Attempts >= cfg.MaxAttempts:
			return "No attempt is left; the worker that comes next sends it to the dead-letter queue.",
				"Wait; is the daemon running?"
		case row.PutOff():
			return "The service that is called for it puts it off again and again, or is away, see remark. No attempt is " +
					"counted.",
				"Look why the service says so; the message is asked for again at the longest retry delay."
		case row.Attempts == 0 && row.Replays > 0:
			return fmt.Sprintf("A replay reopened it; its message waits in %s.", cfg.Queue),
				fmt.Sprintf("Is the daemon running? If the replay was cut off, its letter is still in %s: `%s dlq replay %s`.",
					rabbit.DeadQueue(cfg.Queue), name, ChosenBy(row.Identity))
		case row.Due:
			return fmt.Sprintf("Attempt %d of %d failed, see remark; the next one is due.", row.Attempts, cfg.MaxAttempts),
				"Wait; is the daemon running?"
		}
		return fmt.Sprintf("Attempt %d of %d failed, see remark; the next one is due in %v.", row.Attempts, cfg.MaxAttempts,
			wait), "Wait, or mend the cause meanwhile."
	}
	return "This version does not know the status.", "Use the version that wrote it."
}

// takenMeaning is about a success of the consumer before rollbackd.
func takenMeaning(row dedup.Row) string {
	means := "The consumer before rollbackd applied it, as its log says. Further copies are acked as duplicates, " +
		"without an effect"
	if len(row.BodyHash) == 0 {
		return means + ", whatever their body: its hash is not known."
	}
	return means + "."
}

func deadMeaning(row dedup.Row, cfg Names) (means, next string) {
	name := cfg.Program
	means = fmt.Sprintf("A copy was confirmed in %s, and it had no effect: ", rabbit.DeadQueue(cfg.Queue))
	replay := fmt.Sprintf("`%s dlq replay %s`", name, ChosenBy(row.Identity))
	end := fmt.Sprintf("`%s dlq discard --why … %s` ends this one for good.", name, ChosenBy(row.Identity))
	mend := "mend the cause, then " + replay + "; " + end
	if row.Reason == dedup.ReasonEffectUnknown {
		return "The consumer before rollbackd left it open, see remark. Whether it had its effect is not known, no letter " +
				"of it is in a queue, and further copies are acked without an effect.",
			fmt.Sprintf("Find out whether it had its effect, and `%s dlq export %s -o FILE`. If it had: `%s dlq discard --from "+
				"FILE --why …`. If it had not: `%s dlq replay --from FILE`.", name, ChosenBy(row.Identity), name, name)
	}
	switch dedup.Reason(row.Reason) {
	case dedup.ReasonMalformed:
		return means + "its body is not what the handler takes, see remark.", "A replay fails again, unless its body is " +
			"mended: " +
			fmt.Sprintf("`%s dlq export %s -o FILE`, then `%s dlq replay --from FILE`. Or let the producer send a good "+
				"message under another key; ", name, ChosenBy(row.Identity), name) + end
	case dedup.ReasonUnidentified:
		return means + "it has no usable tag or key, see remark.", "Mend the producer, or correct ROLLBACKD_KEY_FROM, " +
			"restart the daemons, then " + replay + "; " + end
	case dedup.ReasonConflict:
		return means + "another body has its key, see remark.", fmt.Sprintf("Find out which body is right: `%s log "+
			"explain` with the key in remark; %s", name, end)
	case dedup.ReasonCrashed:
		return means + fmt.Sprintf("%d attempts ended without a result, so it may kill the process.", row.Attempts),
			"Look for crashes in the daemon's log, " + mend
	case dedup.ReasonDeliveryLimit:
		return means + "RabbitMQ delivered it too often without an ack.", "Look for crashes in the daemon's log, " + mend
	case dedup.ReasonPermanent:
		return means + "the handler says that no retry can help, see remark.", "See remark; " + mend
	}
	if row.Attempts == 0 { // adopted: its attempts are not known
		return means + "its attempts failed, the last one as in remark.", "See remark; " + mend
	}
	return means + fmt.Sprintf("all %d attempts failed, the last one as in remark.", row.Attempts), "See remark; " + mend
}

// ChosenBy are the flags that choose one identity.
func ChosenBy(k dedup.Identity) string {
	return "--tag " + ShellWord(k.Tag) + " --key " + ShellWord(k.Key)
}

// ShellWord quotes a key so that it can be pasted into a shell.
func ShellWord(s string) string {
	plain := func(r rune) bool {
		return r < 128 && (r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' ||
			strings.ContainsRune("._-:/@%+=,", r))
	}
	if s != "" && s[0] != '-' && s[0] != '=' && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
