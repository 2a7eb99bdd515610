package operator

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/stock"
)

// Row is a row of the consumer log as it is shown. The names of its JSON form are stable.
type Row struct {
	Group    string       `json:"group"`
	Tag      string       `json:"tag"`
	Key      string       `json:"key"`
	Status   string       `json:"status"`
	Reason   dedup.Reason `json:"reason,omitempty"` // why it is dead, or will be
	Attempts int          `json:"attempts"`
	Replays  int          `json:"replays"`
	Since    time.Time    `json:"since"` // the last transition, by the database's clock
	Created  time.Time    `json:"created_at"`
	DeadAt   time.Time    `json:"dead_at,omitzero"`
	Owner    string       `json:"owner,omitempty"` // of the last claim or replay
	Remark   string       `json:"remark,omitempty"`
}

// RowOf is a row as it is shown.
func RowOf(r dedup.Row) Row {
	row := Row{
		Group: r.Group, Tag: r.Tag, Key: r.Key, Status: r.Status.String(), Attempts: r.Attempts, Replays: r.Replays,
		Since: r.At, Created: r.CreatedAt, DeadAt: r.DeadAt, Owner: r.Owner, Remark: r.Remark,
	}
	if !r.DeadAt.IsZero() || r.Condemned() {
		row.Reason = r.Reason
	}
	return row
}

// RowsOf are rows as they are shown; never nil.
func RowsOf(rows []dedup.Row) []Row {
	all := []Row{}
	for _, r := range rows {
		all = append(all, RowOf(r))
	}
	return all
}

// Reserved is a reservation, for whoever only shows it.
type Reserved = stock.Reservation

// Explanation is all that is known of one identity. The names of its JSON form are stable.
type Explanation struct {
	Row

	Of        int    `json:"max_attempts"`
	MessageID string `json:"message_id,omitempty"`
	Hash      string `json:"body_sha256,omitempty"`
	Body      string `json:"body,omitempty"`       // as it was, when it is UTF-8
	Raw       string `json:"body_hex,omitempty"`   // when it is not
	Props     string `json:"properties,omitempty"` // AMQP properties and headers, as JSON

	// the original key of a conflict or of what could not be identified
	FiledFor string `json:"filed_for,omitempty"`
	// SentAs is the message in whose place this one was ended by whoever edited it, EditedFrom the one in whose place this
	// one was sent.
	SentAs     *MessageName `json:"sent_as,omitempty"`
	EditedFrom *MessageName `json:"edited_from,omitempty"`

	Lock   string `json:"lock"`             // in words
	Copies string `json:"copies,omitempty"` // in the dead-letter queue, in words
	Story  []Step `json:"story"`            // oldest first
	Means  string `json:"means"`            // in words
	Next   string `json:"next"`             // what to do

	Reservations []stock.Reservation `json:"reservations"` // of its order
}

// Step is one step of the story.
type Step struct {
	At      time.Time `json:"at"`
	What    string    `json:"what"` // in words
	From    string    `json:"from,omitempty"`
	To      string    `json:"to,omitempty"`
	Attempt int       `json:"attempt"`
	Replays int       `json:"replays"`
	Owner   string    `json:"owner,omitempty"`
	By      string    `json:"by,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// Explain says what is known of a message. Lock and Copies are the caller's to fill.
func Explain(m Message, names Names) Explanation {
	row := m.Row
	e := Explanation{
		Row: RowOf(row), Of: names.MaxAttempts, FiledFor: m.FiledFor, SentAs: m.SentAs, EditedFrom: m.EditedFrom,
		MessageID: row.MessageID, Hash: hex.EncodeToString(row.BodyHash), Props: string(row.Properties), Story: tell(m),
		Reservations: append([]stock.Reservation{}, m.Reservations...), // never null
	}
	e.Reason = row.Reason // also of one that a replay reopened
	if utf8.Valid(row.Body) {
		e.Body = string(row.Body)
	} else {
		e.Raw = hex.EncodeToString(row.Body)
	}
	if e.Means, e.Next = Meaning(row, names); row.Status == dedup.Absent && m.Outbox != nil {
		e.Means, e.Next = waiting(m.Outbox, names)
	}
	if _, told := wire.SendingOf(row.Remark); told { // which the story does
		e.Remark = ""
	}
	return e
}

// tell joins the story of a message with what its order's reservations say, oldest first.
func tell(m Message) []Step {
	all := append([]Step{}, sending(m)...)
	applied := false
	for _, s := range m.Events {
		what := s.From.String() + " → " + s.To.String()
		if s.From == s.To {
			what = s.To.String()
		}
		all = append(all, Step{s.At, what, s.From.String(), s.To.String(), s.Attempt, s.Replays, s.Owner, s.By, s.Error})
		applied = applied || s.To == dedup.Success
	}
	if m.Row.Status == dedup.Success && !applied { // the fast path writes no events
		how := map[bool]string{true: "the log before rollbackd's", false: "a batch"}[m.Row.TakenOver()]
		all = append(all, Step{
			At: m.Row.At, What: "absent → success, in " + how, From: dedup.Absent.String(), To: dedup.Success.String(),
			Attempt: m.Row.Attempts, Replays: m.Row.Replays,
		})
	}
	for _, r := range m.Reservations {
		by := ""
		if r.Named {
			by = r.Tag + " " + r.Key
		}
		what := fmt.Sprintf("order %s, sku %d: %d %s", r.OrderSN, r.SKU, r.Quantity, r.Status)
		if r.SKU == 0 { // the mark of a message without items
			what = fmt.Sprintf("order %s, whatever it reserves later: %s", r.OrderSN, r.Status)
		}
		all = append(all, Step{At: r.UpdatedAt, What: what, By: by})
	}
	slices.SortStableFunc(all, func(a, b Step) int { return a.At.Compare(b.At) })
	return all
}

// Fact is a named line about a message.
type Fact struct{ Name, Text string }

// Facts are what is known, line by line, in the words that Write writes. Texts that are empty are left out.
func (e Explanation) Facts() []Fact {
	status, attempts, remark := e.Status, "", "remark"
	if e.Reason != "" && !e.DeadAt.IsZero() {
		status += " (" + string(e.Reason) + ")"
	}
	if e.Status != dedup.Absent.String() {
		status += " since " + e.Since.Format(time.RFC3339)
		attempts = fmt.Sprintf("%d of %d, replays %d", e.Attempts, e.Of, e.Replays)
	}
	if e.Status == dedup.Success.String() && (e.Attempts > 1 || e.Replays > 0) {
		remark = "before that"
	}
	facts := []Fact{
		{"identity", fmt.Sprintf("group %s, tag %s, key %s", e.Group, e.Tag, e.Key)}, {"status", status},
		{"attempts", attempts}, {"filed for", e.FiledFor},
	}
	for name, other := range map[string]*MessageName{"edited, sent as": e.SentAs, "edited from": e.EditedFrom} {
		if other != nil { // one of them at most, but of a chain
			facts = append(facts, Fact{name, other.String()})
		}
	}
	facts = append(facts, []Fact{
		{"owner", e.Owner}, {remark, e.Remark}, {"message id", e.MessageID}, {"body sha256", e.Hash},
		{"body", screen.Shorten(e.Body, maxShownBody)}, {"body in hex", screen.Shorten(e.Raw, maxShownBody)},
		{"lock", e.Lock}, {"copies", e.Copies}, {"this means", e.Means}, {"what next", e.Next},
	}...)
	return slices.DeleteFunc(facts, func(f Fact) bool { return f.Text == "" })
}

// maxShownBody is how many characters of a body are shown.
const maxShownBody = 400

// StepsHeader names the columns of Steps.
func StepsHeader() []string { return []string{"AT", "WHAT", "ATTEMPT", "REPLAYS", "BY", "NOTE"} }

// Steps is the story, a row for each step, in the words that Write writes.
func (e Explanation) Steps() (rows [][]string) {
	for _, s := range e.Story {
		attempt, replays := "", ""
		if s.To != "" {
			attempt, replays = fmt.Sprint(s.Attempt), fmt.Sprint(s.Replays)
		}
		rows = append(rows, []string{
			s.At.Format("2006-01-02T15:04:05.000Z"), s.What, attempt, replays, cmp.Or(s.By, s.Owner),
			screen.Shorten(s.Error, 200),
		})
	}
	return rows
}

// NoLock is said in place of [LockText] where there is none.
const NoLock = "no lock is used: ROLLBACKD_LOCK or ROLLBACKD_REDIS_URL is off"

// LockText says in words who holds a lock.
func LockText(s lock.State) string {
	until := "without an end: rollbackd did not write it"
	if s.TTL >= 0 {
		until = fmt.Sprintf("for another %v", s.TTL.Round(time.Second))
	}
	switch s.Hold {
	case 0:
		return "free"
	case lock.Foreign:
		return "a value that is not rollbackd's"
	case lock.DoneMarker:
		return "done marker, " + until
	}
	return fmt.Sprintf("held by %s, %s", s.Token, until)
}

// CopiesText is what the row says of letters.
func CopiesText(row dedup.Row, queue string) string {
	if row.Status == dedup.Dead && row.Reason != dedup.ReasonEffectUnknown {
		return fmt.Sprintf("one was confirmed in %s at %s", rabbit.DeadQueue(queue), row.DeadAt.Format(time.RFC3339))
	}
	return ""
}

// ReservedHeader names the columns in which reservations are written for a person.
func ReservedHeader() []string {
	return []string{"SKU", "QUANTITY", "STATUS", "SINCE", "BY TAG", "BY KEY"}
}

// reservedRows are reservations, a row for each.
func reservedRows(all []stock.Reservation) (rows [][]string) {
	for _, r := range all {
		sku := fmt.Sprint(r.SKU)
		if r.SKU == 0 { // whatever is reserved later
			sku = "all"
		}
		rows = append(rows, []string{
			sku, fmt.Sprint(r.Quantity), r.Status, r.UpdatedAt.Format(time.RFC3339), r.Tag, r.Key,
		})
	}
	return rows
}

// Write tells a person all that is known: of an order what it has reserved, then message by message, then what could
// not be seen. The order is "" when a message was asked for.
func Write(w io.Writer, order string, reserved []stock.Reservation, messages []Explanation, unseen []string) error {
	var text strings.Builder
	if order != "" {
		fmt.Fprintf(&text, "order %s: %s, %s\n", screen.Printable(order), screen.Plural(len(reserved), "reservation"),
			screen.Plural(len(messages), "message"))
		if len(reserved) > 0 {
			text.WriteByte('\n')
			_ = screen.WriteTable(&text, ReservedHeader(), reservedRows(reserved)) // which takes everything
		}
	}
	for i, e := range messages {
		if i > 0 || order != "" {
			text.WriteByte('\n')
		}
		var facts [][]string
		for _, f := range e.Facts() {
			facts = append(facts, []string{f.Name, f.Text})
		}
		_ = screen.WriteTable(&text, facts[0], facts[1:])
		if len(e.Story) > 0 {
			text.WriteByte('\n')
			_ = screen.WriteTable(&text, StepsHeader(), e.Steps())
		}
	}
	for i, lacks := range unseen {
		if i == 0 {
			text.WriteString("\nNot seen:\n")
		}
		text.WriteString("  " + lacks + "\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

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

// meaning is what Meaning says, with names in brackets for what differs from row to row: what the first condition says
// that holds.
func meaning(row dedup.Row, most int) (means, next string) {
	const nothing, running = "Nothing.", "Is the daemon running? A redelivered copy comes by itself."
	success, processing := row.Status == dedup.Success, row.Status == dedup.Processing
	dead, adopted := row.Status == dedup.Dead, row.Attempts == 0 // of an adopted one they are not known
	why, known := deadMeans[row.Reason]
	for _, m := range []struct {
		so          bool
		means, next string
	}{
		{row.Status == dedup.Absent, "The log does not know it, though a reservation names it: its row has outlived " +
			"ROLLBACKD_LOG_RETENTION, or somebody deleted it.", "`{program} reconcile` says whether it is too young for that."},
		{success && !row.TakenOver(), "Its effect is committed. Further copies are acked as duplicates, without an effect.",
			nothing},
		{success && len(row.BodyHash) == 0, "The consumer before rollbackd applied it, as its log says. Further copies are " +
			"acked as duplicates, without an effect, whatever their body: its hash is not known.", nothing},
		{success, "The consumer before rollbackd applied it, as its log says. Further copies are acked as duplicates, " +
			"without an effect.", nothing},
		{row.Status == dedup.Discarded, "A person ended it, see remark. Further copies are acked without an effect.",
			nothing},
		{dead && row.Reason == dedup.ReasonEffectUnknown, "The consumer before rollbackd left it open, see remark. Whether " +
			"it had its effect is not known, no letter of it is in a queue, and further copies are acked without an effect.",
			"Find out whether it had its effect, and `{program} dlq export {chosen} -o FILE`. If it had: `{program} dlq " +
				"discard --from FILE --why …`. If it had not: `{program} dlq replay --from FILE`."},
		{dead && known, letter + why.means, why.next},
		{dead && adopted, letter + "its attempts failed, the last one as in remark.", "See remark; {mend}"},
		{dead, letter + "all {attempt} attempts failed, the last one as in remark.", "See remark; {mend}"},
		{processing && row.LeaseLive, "A worker makes attempt {attempt} right now; its lease ends in {wait} at the latest.",
			"Wait."},
		{processing && row.Attempts >= most, "Attempt {attempt}, the last one, ended without a result. The next copy goes " +
			"to the dead-letter queue as crashed.", running},
		{processing, "Attempt {attempt} ended without a result, most likely with its process. The next copy takes it over.",
			running},
		{row.Status != dedup.Failed, "This version does not know the status.", "Use the version that wrote it."},
		{row.Condemned(), "It failed for good ({reason}, see remark) and gets no further attempt; {dead} does not take its " +
			"letter yet, and its delivery is held until then.", "Make room in {dead}, or make it again with `{program} " +
			"migrate`; the daemon's log and /readyz say what RabbitMQ answers."},
		{row.Attempts >= most, "No attempt is left; the worker that comes next sends it to the dead-letter queue.",
			"Wait; is the daemon running?"},
		{row.PutOff() && row.Wait > 0, "The handler, or the service that is called for it, has put it off, see remark. No " +
			"attempt is counted; it comes again in {wait}.", "Wait, or look why it is put off."},
		{row.PutOff(), "The service that is called for it puts it off again and again, or is away, see remark. No attempt " +
			"is counted.", "Look why the service says so; the message is asked for again at the longest retry delay."},
		{row.Attempts == 0 && row.Replays > 0, "A replay reopened it; its message waits in {queue}.",
			"Is the daemon running? If the replay was cut off, its letter is still in {dead}: {replay}."},
		{row.Due, "Attempt {attempt} of {of} failed, see remark; the next one is due.", "Wait; is the daemon running?"},
	} {
		if m.so {
			return m.means, m.next
		}
	}
	return "Attempt {attempt} of {of} failed, see remark; the next one is due in {wait}.",
		"Wait, or mend the cause meanwhile."
}

// letter begins what is said of a dead one.
const letter = "A copy was confirmed in {dead}, and it had no effect: "

// deadMeans says why there is a letter, beside those whose attempts are used up.
var deadMeans = map[dedup.Reason]struct{ means, next string }{
	dedup.ReasonMalformed: {"its body is not what the handler takes, see remark.", "A replay fails again, unless its " +
		"body is mended: `{program} dlq export {chosen} -o FILE`, then `{program} dlq replay --from FILE`. Or let the " +
		"producer send a good message under another key; {end}"},
	dedup.ReasonUnidentified: {"it has no usable tag or key, see remark.", "Mend the producer, or correct " +
		"ROLLBACKD_KEY_FROM, restart the daemons, then {replay}; {end}"},
	dedup.ReasonConflict: {"another body has its key, see remark.", "Find out which body is right: `{program} log " +
		"explain` with the key in remark; {end}"},
	dedup.ReasonCrashed: {"{attempt} attempts ended without a result, so it may kill the process.",
		"Look for crashes in the daemon's log, {mend}"},
	dedup.ReasonDeliveryLimit: {"RabbitMQ delivered it too often without an ack.",
		"Look for crashes in the daemon's log, {mend}"},
	dedup.ReasonPermanent: {"the handler says that no retry can help, see remark.", "See remark; {mend}"},
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
