package operator

import (
	"fmt"
	"strconv"
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
	chosen := ChosenBy(row.Identity)
	replay := fmt.Sprintf("`%s dlq replay %s`", cfg.Program, chosen)
	end := fmt.Sprintf("`%s dlq discard --why … %s` ends this one for good.", cfg.Program, chosen)
	words := strings.NewReplacer("{program}", cfg.Program, "{queue}", cfg.Queue, "{dead}", rabbit.DeadQueue(cfg.Queue),
		"{attempt}", strconv.Itoa(row.Attempts), "{of}", strconv.Itoa(cfg.MaxAttempts), "{reason}", string(row.Reason),
		"{wait}", row.Wait.Round(time.Second).String(), "{chosen}", chosen, "{replay}", replay, "{end}", end,
		"{mend}", "mend the cause, then "+replay+"; "+end)
	means, next = meaning(row, cfg.MaxAttempts)
	return words.Replace(means), words.Replace(next)
}

// meaning is what Meaning says, with names in brackets for what differs from row to row.
func meaning(row dedup.Row, most int) (means, next string) {
	const nothing, running = "Nothing.", "Is the daemon running? A redelivered copy comes by itself."
	switch {
	case row.Status == dedup.Absent:
		return "The log does not know it, though a reservation names it: its row has outlived ROLLBACKD_LOG_RETENTION, or " +
			"somebody deleted it.", "`{program} reconcile` says whether it is too young for that."
	case row.Status == dedup.Success && !row.TakenOver():
		return "Its effect is committed. Further copies are acked as duplicates, without an effect.", nothing
	case row.Status == dedup.Success && len(row.BodyHash) == 0:
		return "The consumer before rollbackd applied it, as its log says. Further copies are acked as duplicates, " +
			"without an effect, whatever their body: its hash is not known.", nothing
	case row.Status == dedup.Success:
		return "The consumer before rollbackd applied it, as its log says. Further copies are acked as duplicates, " +
			"without an effect.", nothing
	case row.Status == dedup.Discarded:
		return "A person ended it, see remark. Further copies are acked without an effect.", nothing
	case row.Status == dedup.Dead && row.Reason == dedup.ReasonEffectUnknown:
		return "The consumer before rollbackd left it open, see remark. Whether it had its effect is not known, no letter " +
				"of it is in a queue, and further copies are acked without an effect.",
			"Find out whether it had its effect, and `{program} dlq export {chosen} -o FILE`. If it had: `{program} dlq " +
				"discard --from FILE --why …`. If it had not: `{program} dlq replay --from FILE`."
	case row.Status == dedup.Dead:
		means, next = deadMeaning(row)
		return "A copy was confirmed in {dead}, and it had no effect: " + means, next
	case row.Status == dedup.Processing && row.LeaseLive:
		return "A worker makes attempt {attempt} right now; its lease ends in {wait} at the latest.", "Wait."
	case row.Status == dedup.Processing && row.Attempts >= most:
		return "Attempt {attempt}, the last one, ended without a result. The next copy goes to the dead-letter queue as " +
			"crashed.", running
	case row.Status == dedup.Processing:
		return "Attempt {attempt} ended without a result, most likely with its process. The next copy takes it over.", running
	case row.Status != dedup.Failed:
		return "This version does not know the status.", "Use the version that wrote it."
	case row.Condemned():
		return "It failed for good ({reason}, see remark) and gets no further attempt; {dead} does not take its letter " +
				"yet, and its delivery is held until then.",
			"Make room in {dead}, or make it again with `{program} migrate`; the daemon's log and /readyz say what RabbitMQ " +
				"answers."
	case row.Attempts >= most:
		return "No attempt is left; the worker that comes next sends it to the dead-letter queue.",
			"Wait; is the daemon running?"
	case row.PutOff() && row.Wait > 0:
		return "The handler, or the service that is called for it, has put it off, see remark. No attempt is counted; it " +
			"comes again in {wait}.", "Wait, or look why it is put off."
	case row.PutOff():
		return "The service that is called for it puts it off again and again, or is away, see remark. No attempt is " +
			"counted.", "Look why the service says so; the message is asked for again at the longest retry delay."
	case row.Attempts == 0 && row.Replays > 0:
		return "A replay reopened it; its message waits in {queue}.",
			"Is the daemon running? If the replay was cut off, its letter is still in {dead}: {replay}."
	case row.Due:
		return "Attempt {attempt} of {of} failed, see remark; the next one is due.", "Wait; is the daemon running?"
	}
	return "Attempt {attempt} of {of} failed, see remark; the next one is due in {wait}.",
		"Wait, or mend the cause meanwhile."
}

// deadMeaning says why there is a letter.
func deadMeaning(row dedup.Row) (means, next string) {
	switch row.Reason {
	case dedup.ReasonMalformed:
		return "its body is not what the handler takes, see remark.", "A replay fails again, unless its body is mended: " +
			"`{program} dlq export {chosen} -o FILE`, then `{program} dlq replay --from FILE`. Or let the producer send a " +
			"good message under another key; {end}"
	case dedup.ReasonUnidentified:
		return "it has no usable tag or key, see remark.", "Mend the producer, or correct ROLLBACKD_KEY_FROM, restart the " +
			"daemons, then {replay}; {end}"
	case dedup.ReasonConflict:
		return "another body has its key, see remark.", "Find out which body is right: `{program} log explain` with the " +
			"key in remark; {end}"
	case dedup.ReasonCrashed:
		return "{attempt} attempts ended without a result, so it may kill the process.",
			"Look for crashes in the daemon's log, {mend}"
	case dedup.ReasonDeliveryLimit:
		return "RabbitMQ delivered it too often without an ack.", "Look for crashes in the daemon's log, {mend}"
	case dedup.ReasonPermanent:
		return "the handler says that no retry can help, see remark.", "See remark; {mend}"
	}
	if row.Attempts == 0 { // adopted: its attempts are not known
		return "its attempts failed, the last one as in remark.", "See remark; {mend}"
	}
	return "all {attempt} attempts failed, the last one as in remark.", "See remark; {mend}"
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
