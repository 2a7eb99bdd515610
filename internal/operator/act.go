package operator

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// Kind is what an act is.
type Kind string

// The kinds. [Operator.Note] and [Operator.Ask] take others, of at most 32 small letters, digits and _.
const (
	KindReplay  Kind = "replay"
	KindDiscard Kind = "discard"
	KindPause   Kind = "pause"
	KindResume  Kind = "resume"
	// KindReconcile compares log, letters and stock; KindMend mends one finding of that. See [Task].
	KindReconcile Kind = "reconcile"
	KindMend      Kind = "mend"
	// KindCompensate is a replay that the fleet does by itself, KindPrune the deletion of old rows that a person asked
	// for.
	KindCompensate Kind = "compensate"
	KindPrune      Kind = "prune"
	// KindOutboxRetry has messages of the outbox sent that wait for a person, KindOutboxDrop deletes them.
	KindOutboxRetry Kind = "outbox_retry"
	KindOutboxDrop  Kind = "outbox_drop"
	// KindExpected looks what became of messages that should have come; see [Expectation].
	KindExpected Kind = "expected"
	// KindRehearse finds out what a replay would come to; see [Rehearsal].
	KindRehearse Kind = "rehearse"
	// KindEdit ends a dead letter and sends an edited one in its place; see [EditRequest].
	KindEdit Kind = "edit"
	// KindRefused is what a person asked for and may not do.
	KindRefused Kind = "refused"
)

// Kinds are those that have a name here.
func Kinds() []Kind {
	return []Kind{
		KindReplay, KindDiscard, KindPause, KindResume, KindReconcile, KindMend, KindCompensate, KindPrune,
		KindOutboxRetry, KindOutboxDrop, KindExpected, KindRehearse, KindEdit,
		KindRefused,
	}
}

// asked reports whether somebody may ask the fleet for a run of this kind.
func (k Kind) asked() bool { return k == KindReplay || k == KindDiscard }

// overLetters reports whether an act of this kind is a run over dead letters.
func (k Kind) overLetters() bool { return k.asked() || k == KindCompensate }

// State is how an act stands.
type State string

// The states. An act that takes no time is done, or failed, from the start.
const (
	Running State = "running" // a run goes on, or waits for a daemon that takes it up
	Done    State = "done"    // it came to its end; what it could not do stands in its result
	Stopped State = "stopped" // somebody stopped it
	Failed  State = "failed"  // it ended early, see its error
)

// Act is what somebody did, or does. The names of its JSON form are stable.
type Act struct {
	ID    string `json:"id"`
	Kind  Kind   `json:"kind"`
	State State  `json:"state"`
	Actor string `json:"actor"`
	Why   string `json:"why,omitempty"`
	// Detail is what was asked for, as JSON: a [Request] of a run, of a pause its end, of a task what its caller gave.
	Detail json.RawMessage `json:"detail,omitempty"`
	// CutOff freezes the set of a run: what died later is not of it.
	CutOff  time.Time `json:"cut_off,omitzero"`
	Created time.Time `json:"created_at"` // by the database's clock, as all times
	Ended   time.Time `json:"ended_at,omitzero"`
	// StopBy asked a run to stop.
	StopBy string `json:"stop_by,omitempty"`
	// Owner is the process that works on it; "" while none does.
	Owner string `json:"owner,omitempty"`
	// Silent is for how many seconds that process has said nothing, when it should have: it is gone, or MySQL does not
	// hear it. 0: it works, or nobody has taken the act up.
	Silent float64 `json:"silent_seconds,omitempty"`
	// Own: the process that asked for it does it, and nobody else; see [Operator.Do].
	Own bool `json:"own,omitempty"`
	// WaitsFor are the acts that hold places, when this one waits for one. Only an act that is read by itself has them.
	WaitsFor []Holder `json:"waits_for,omitempty"`
	// Terms is how often a process took the run up: more than once when one died, drained, or waited for a server.
	Terms    int       `json:"terms,omitempty"`
	Progress *Progress `json:"progress,omitempty"` // of a run
	// Sweeping: the letters are done, and what is stale of them in the dead-letter queue is yet to be dropped.
	Sweeping bool   `json:"sweeping,omitempty"`
	Error    string `json:"error,omitempty"`
	// Result is nil while it is running.
	Result *Result `json:"result,omitempty"`

	work    int       // what is left to do of it
	first   int64     // no event of it has a smaller id
	settled time.Time // what it reopened until then is confirmed
}

// Holder is an act that some process works on, and so holds one of that process's places. The names of its JSON form
// are stable.
type Holder struct {
	ID    string    `json:"id"`
	Kind  Kind      `json:"kind"`
	Actor string    `json:"actor"`
	Since time.Time `json:"since"` // when it was written down
	Owner string    `json:"owner"`
}

// Request is what was asked of a run; ErrRequest when the act is none.
func (a Act) Request() (Request, error) {
	var r Request
	if !a.Kind.overLetters() {
		return r, fmt.Errorf("%w: %s is no run over letters", ErrRequest, a.Kind)
	}
	if err := json.Unmarshal(a.Detail, &r); err != nil {
		return r, fmt.Errorf("read what was asked for in act %s: %w", a.ID, err)
	}
	return r, nil
}

// Progress is how far a run has come.
type Progress struct {
	Phase   string `json:"phase"`   // letters, or waiting; of a [Task] what it looks at
	Matched int    `json:"matched"` // letters of the set, counted up to MaxCounted when it began
	More    bool   `json:"more"`    // there were more
	Done    int    `json:"done"`    // replayed or discarded, by all processes that worked on it
	Left    int    `json:"left"`    // stay, seen by the process that works on it now
	Waiting int    `json:"waiting"` // replayed, without an outcome
	Applied int    `json:"applied"`
	Failed  int    `json:"failed_again"`
	// Trouble is what the run waits for; "" while it goes on.
	Trouble string `json:"trouble,omitempty"`
}

// Result is what a run came to. Replayed and Discarded are exact over all processes that worked on it.
type Result struct {
	Replayed  int `json:"replayed"` // rows reopened, messages confirmed
	Discarded int `json:"discarded"`
	// What became of the replayed until the end of the run, as far as it watched them.
	Applied     int `json:"applied"`
	FailedAgain int `json:"failed_again"`
	Unsettled   int `json:"unsettled"`
	// Swept are stale letters that were dropped from the queue afterwards.
	Swept int `json:"swept"`
	// LeftCount letters were chosen and stay, by their reasons in LeftBy; Left names the first of them.
	LeftCount int                    `json:"left_count"`
	LeftBy    map[deadletter.Why]int `json:"left_by,omitempty"`
	Left      []deadletter.Left      `json:"left,omitempty"`
	// Mended are findings, Deleted rows, Retried messages of the outbox, of an act of that kind.
	Mended  int `json:"mended,omitempty"`
	Deleted int `json:"deleted,omitempty"`
	Retried int `json:"retried,omitempty"`
	// ByReason counts the replayed or discarded by why they were dead.
	ByReason map[dedup.Reason]int `json:"by_reason,omitempty"`
	// Report is what the work of a [Task] came to.
	Report json.RawMessage `json:"report,omitempty"`

	byRows bool // so the letters lie in the queue yet, and are stale
}

const actColumns = "id, kind, state, work, actor, why, request, cut_off, created_at, ended_at, " +
	"COALESCE(stop_by, ''), COALESCE(owner, ''), lease_until, UTC_TIMESTAMP(6), term, progress, result, error, " +
	"first_event, settled_at"

// What is left to do of an act, in the column work.
const (
	workNone    = 0
	workLetters = 1
	workSweep   = 2
	// workOwn is done by the process that asked for it, and by nobody else: see [Operator.Do].
	workOwn = 3
)

// standing is the state of an act: what only its own process could do has failed with it.
const standing = "IF(state = 'running' AND work = 3 AND lease_until <= UTC_TIMESTAMP(6), 'failed', state)"

// silence is how long a worker may say nothing before that is told: it says something each [lookEvery].
const silence = 3 * lookEvery

// vanished is what is told of an act whose process said nothing any more.
const vanished = "its process was killed, or cannot reach MySQL any more: nobody goes on with it. What it did until " +
	"then stands in the stories of its messages"

func scanAct(rows *sql.Rows) (a Act, err error) {
	var lease sql.NullTime
	var now time.Time
	if err := rows.Scan(&a.ID, &a.Kind, &a.State, &a.work, &a.Actor, &a.Why, &a.Detail, mysqldb.OrZero(&a.CutOff),
		&a.Created, mysqldb.OrZero(&a.Ended), &a.StopBy, &a.Owner, &lease, &now, &a.Terms, asJSON{&a.Progress},
		asJSON{&a.Result}, &a.Error, &a.first, mysqldb.OrZero(&a.settled)); err != nil {
		return a, fmt.Errorf("read act %s: %w", a.ID, err)
	}
	a.Own, a.Sweeping = a.work == workOwn, a.work == workSweep
	held := lease.Time.After(now)
	if !held {
		a.Owner = ""
	}
	if a.State == Running && lease.Valid {
		lastWord := lease.Time.Add(-leaseTime)
		if silent := now.Sub(lastWord); silent >= silence {
			a.Silent = math.Floor(silent.Seconds())
		}
		if a.Own && !held {
			a.State, a.Error, a.Ended, a.Silent = Failed, vanished, lastWord, 0
		}
	}
	return a, nil
}

// list reads acts of the group and queue.
func (d *Operator) list(ctx context.Context, where string, args ...any) ([]Act, error) {
	return mysqldb.List(ctx, d.db, scanAct, "SELECT "+actColumns+" FROM "+d.acts+" WHERE group_name = ? AND queue = ? "+
		"AND "+where, append([]any{[]byte(d.o.Group), []byte(d.o.Queue)}, args...)...)
}

// Act reads one act; ErrNoAct when this group and queue have none with the id.
func (d *Operator) Act(ctx context.Context, id string) (Act, error) {
	if uuid.Validate(id) != nil {
		return Act{}, ErrNoAct
	}
	found, err := d.list(ctx, "id = ?", []byte(id))
	switch {
	case err != nil:
		return Act{}, fmt.Errorf("read act %s: %w", id, err)
	case len(found) == 0:
		return Act{}, ErrNoAct
	}
	a := found[0]
	if a.State == Running && a.Owner == "" {
		if a.WaitsFor, err = d.waitsFor(ctx, id); err != nil {
			return Act{}, fmt.Errorf("look what act %s waits for: %w", id, err)
		}
	}
	return a, nil
}

// mostHolders bounds the acts that one is said to wait for: those of some daemons.
const mostHolders = 10 * atOnce

// waitsFor are the acts that somebody works on, in the order in which they are taken up; none while they are fewer than
// one process has places, because then nobody waits for them, and none when the act itself has got a place meanwhile.
func (d *Operator) waitsFor(ctx context.Context, id string) (all []Holder, err error) {
	held, err := d.list(ctx, "work BETWEEN ? AND ? AND lease_until > UTC_TIMESTAMP(6) ORDER BY work, id LIMIT ?",
		workLetters, workSweep, mostHolders)
	itself := func(a Act) bool { return a.ID == id }
	if err != nil || len(held) < atOnce || slices.ContainsFunc(held, itself) {
		return nil, err
	}
	for _, a := range held {
		all = append(all, Holder{ID: a.ID, Kind: a.Kind, Actor: a.Actor, Since: a.Created, Owner: a.Owner})
	}
	return all, nil
}

// ActFilter chooses acts for a page. A zero condition always holds.
type ActFilter struct {
	Kind  Kind
	State State
	Actor string
	// Since and Until bound when the act was written down: at or after, and before.
	Since, Until time.Time
	Before       string // id at which the last page ended: older acts only
	Limit        int    // 1 to MaxActs, 0 for 50
}

// MaxActs bounds a page of acts.
const MaxActs = 200

// Acts are the acts of the group and queue, the latest first, each page read through an index. Next is the Before of
// the next page, "" after the last. The reports of tasks are left out, which may be long: Act has them.
func (d *Operator) Acts(ctx context.Context, f ActFilter) (acts []Act, next string, err error) {
	if f.Limit = cmp.Or(f.Limit, 50); f.Limit < 1 || f.Limit > MaxActs {
		return nil, "", fmt.Errorf("%w: a page of %d acts, want 1 to %d", ErrRequest, f.Limit, MaxActs)
	}
	text, args := "TRUE", []any(nil)
	for _, c := range []struct{ column, value string }{
		{"kind", string(f.Kind)}, {standing, string(f.State)}, {"actor", f.Actor},
	} {
		if c.value != "" {
			text += " AND " + c.column + " = ?"
			args = append(args, c.value)
		}
	}
	for _, c := range []struct {
		at   time.Time
		sign string
		wide time.Duration
	}{{f.Since, ">=", -clocks}, {f.Until, "<", clocks}} {
		if !c.at.IsZero() {
			text += " AND created_at " + c.sign + " ? AND id " + c.sign + " ?"
			args = append(args, c.at, []byte(idAt(c.at.Add(c.wide))))
		}
	}
	if f.Before != "" {
		text += " AND id < ?"
		args = append(args, []byte(f.Before))
	}
	if acts, err = d.list(ctx, text+" ORDER BY id DESC LIMIT ?", append(args, f.Limit+1)...); err != nil {
		return nil, "", fmt.Errorf("list acts: %w", err)
	}
	for _, a := range acts {
		if a.Result != nil {
			a.Result.Report = nil
		}
	}
	if len(acts) > f.Limit {
		acts = acts[:f.Limit]
		next = acts[f.Limit-1].ID
	}
	return acts, next, nil
}

// clocks is how far the clock of a process, of which ids are made, may be from the database's.
const clocks = time.Hour

// idAt is the smallest id of a moment, so that a time is found through the index of ids.
func idAt(t time.Time) string {
	hexed := fmt.Sprintf("%012x", max(0, t.UnixMilli()))
	return hexed[:8] + "-" + hexed[8:12] + "-7000-8000-000000000000"
}

// errActExists says that an act with this id was written before, by the same request.
var errActExists = errors.New("the act was written before")

// errGuarded says that a run of the same set goes on.
var errGuarded = errors.New("the guard is taken")

// insert writes an act inside tx.
func (d *Operator) insert(ctx context.Context, tx dedup.Execer, n *draft) error {
	ended, lease, progress := "UTC_TIMESTAMP(6)", "NULL", any(nil)
	if n.State == Running {
		ended, progress = "NULL", asJSON{n.Progress}
	}
	if n.work == workOwn {
		lease = leased
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO "+d.acts+" (id, group_name, queue, kind, state, work, actor, why, "+
		"request, guard, cut_off, created_at, ended_at, first_event, progress, error, owner, lease_until) VALUES (?, ?, ?, "+
		"?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), "+ended+", ?, ?, ?, NULLIF(?, ''), "+lease+")",
		[]byte(n.ID), []byte(d.o.Group), []byte(d.o.Queue), string(n.Kind), string(n.State), n.work, n.Actor, n.Why,
		asJSON{n.asked}, n.guard, sql.NullTime{Time: n.CutOff, Valid: !n.CutOff.IsZero()}, n.first, progress, n.Error,
		[]byte(n.Owner))
	if mysqldb.DuplicateIn(err, strings.Trim(d.acts, "`"), "one_run_of_a_set") {
		return errGuarded
	}
	if mysqldb.Duplicate(err) {
		return errActExists
	}
	if err != nil {
		return fmt.Errorf("write down %s: %w", n.Kind, err)
	}
	return nil
}

// Note writes down an act that the operator has no part in, such as one that was refused. Detail is anything that has a
// JSON form; failure is why it was not done, "" when it was.
func (d *Operator) Note(
	ctx context.Context, who Actor, kind Kind, why string, detail any, failure string,
) (Act, error) {
	n, err := newDraft(who, TaskRequest{Kind: kind, Why: why, Detail: detail})
	if err != nil {
		return Act{}, err
	}
	if failure != "" {
		n.State, n.Error = Failed, screen.Shorten(failure, dedup.MaxRemark)
	}
	if err := d.insert(ctx, d.db, n); err != nil {
		return Act{}, err
	}
	return d.Act(ctx, n.ID)
}

var kindName = regexp.MustCompile(`^[0-9a-z_]{1,32}$`)

func (k Kind) check() error {
	return refuseIf(!kindName.MatchString(string(k)), "a kind of act named %q", string(k))
}

// Plain is a text on one line, without characters that act on a screen or turn the writing round, for whoever reads it
// anywhere.
func Plain(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
	}), " ")
}

// Subject says in words what an act is on.
func (a Act) Subject() string {
	r, err := a.Request()
	var of OutboxRequest
	var rehearsed RehearsalRequest
	var edited Edited
	switch ofOutbox := a.Kind == KindOutboxRetry || a.Kind == KindOutboxDrop; {
	case ofOutbox && json.Unmarshal(a.Detail, &of) == nil:
		return of.String()
	case a.Kind == KindEdit && json.Unmarshal(a.Detail, &edited) == nil && edited.Key != "":
		return fmt.Sprintf("%v, sent as %v", edited.MessageName, edited.Sent)
	case a.Kind == KindRehearse && json.Unmarshal(a.Detail, &rehearsed) == nil:
		return Words(rehearsed.Filter)
	case err != nil:
		return named(a.Detail)
	}
	text := Words(r.Filter)
	if r.From != "" {
		text += " from " + r.From
	}
	if r.Limit > 0 {
		text += fmt.Sprintf(", at most %d", r.Limit)
	}
	return text
}

// named are the fields of a JSON object in words: the name of each, and its value where that is not true alone.
func named(detail json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(detail, &fields) != nil {
		return string(detail)
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch value, word := string(fields[name]), strings.ReplaceAll(name, "_", " "); value {
		case "true":
			words = append(words, word)
		case "false":
		default:
			words = append(words, word+" "+strings.Trim(value, `"`))
		}
	}
	return strings.Join(words, ", ")
}

// Outcome says in words what came of an act so far.
func (a Act) Outcome() string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	if report := a.Rehearsed(); report != nil {
		byOutcome := map[deadletter.Prospect]int{}
		for _, g := range report.Groups {
			byOutcome[g.Outcome] += g.Count
		}
		for _, o := range deadletter.Prospects() {
			add(byOutcome[o], o.Words())
		}
		add(report.Moved, "moved meanwhile")
	}
	switch {
	case a.Kind == KindRehearse && len(parts) == 0 && a.Progress != nil: // a list has no reports
		add(a.Progress.Done, "rehearsed")
	case a.Result != nil:
		r := a.Result
		add(r.Replayed, "replayed")
		add(r.Applied, "applied")
		add(r.FailedAgain, "failed again")
		add(r.Discarded, "discarded")
		add(r.Mended, "mended")
		add(r.Deleted, "deleted")
		add(r.Retried, "to be sent again")
		add(r.LeftCount, "stay")
	case a.Progress != nil:
		add(a.Progress.Done, "done")
	}
	if a.Silent > 0 {
		parts = append(parts, fmt.Sprintf("its worker is gone: it has said nothing for %.0f s", a.Silent))
	}
	return strings.Join(parts, ", ")
}
