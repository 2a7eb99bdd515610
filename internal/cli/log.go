package cli

import (
	"bytes"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/explain"
	stockhandler "github.com/rollbackd/rollbackd/internal/handler/stock"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
)

func newLogCmd(a *app) *cobra.Command {
	return newGroupCmd("log", "Ask the consumer log, or delete what is old in it", newLogListCmd(a), newLogExplainCmd(a),
		newLogPruneCmd(a))
}

// question is what log explain was asked.
type question struct {
	key, tag, order string
	queue           bool // count the copies in the dead-letter queue
}

func newLogExplainCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain KEY | --order SN",
		Short: "Tell all that is known of one message, or of one order's, what it means and what to do next",
		Long: `Tell all that is known of the message with this key: its row in the consumer log, its story in order of time,
the reservations that it gave back, its lock, what that means and what to do next. A key that exists under
several tags is told once for each, and so are messages that are filed as conflict or unidentified because of it.

With --order: the same for every message of an order. They are found by what its reservations name, by the order's
number as key, and by the bodies that the log keeps of messages which are not applied.

The dead-letter queue is not touched: whether a copy lies there, the row says. --count-letters looks: it reads all
letters and gives them back to their places, which RabbitMQ counts as one delivery of the million that the queue allows,
and hides them from other readers meanwhile.`,
		Args: cobra.MaximumNArgs(1),
	}
	out := addOutputFlag(cmd)
	var q question
	cmd.Flags().StringVar(&q.tag, "tag", "", "only the message with this tag")
	cmd.Flags().StringVar(&q.order, "order", "", "all messages of the order with this number")
	cmd.Flags().BoolVar(&q.queue, "count-letters", false, "count the copies in the dead-letter queue too")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 && q.order == "":
			return usageErrorf("which message? A key, or --order SN")
		case len(args) == 1 && q.order != "":
			return usageErrorf("a key and --order exclude each other")
		case q.order != "" && q.tag != "":
			return usageErrorf("--tag goes with a key")
		case len(args) == 1:
			q.key = args[0]
		}
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		told, err := a.explain(cmd.Context(), cfg, q)
		if err != nil {
			return err
		}
		return a.showExplained(told, q, out)
	}
	return cmd
}

// explained is the answer to a question. The names of its JSON form are stable.
type explained struct {
	Order        string                `json:"order_sn"`
	Reservations []explain.Reserved    `json:"reservations"`
	Messages     []explain.Explanation `json:"messages"`
	Unseen       []string              `json:"unseen"` // what the answer may lack
}

func (a *app) showExplained(told explained, q question, out *output) error {
	if out.chosen == outputJSON {
		if q.order == "" {
			for _, unseen := range told.Unseen {
				fmt.Fprintf(a.stderr, "%s: not seen: %s\n", a.name, unseen)
			}
			return writeJSON(a.stdout, told.Messages)
		}
		return writeJSON(a.stdout, told)
	}
	var text bytes.Buffer
	if err := explain.Write(&text, told.Order, told.Reservations, told.Messages, told.Unseen); err != nil {
		return err
	}
	if _, err := text.WriteTo(a.stdout); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// explain gathers the answer.
func (a *app) explain(ctx context.Context, cfg config.Config, q question) (explained, error) {
	db, closeDB, err := a.openDatabase(ctx, cfg, "log")
	if err != nil {
		return explained{}, err
	}
	defer closeDB()
	records, err := a.newLog(ctx, cfg, db)
	if err != nil {
		return explained{}, err
	}
	o := explain.Options{Records: records, Group: cfg.Group, OrderOf: stockhandler.OrderOf}
	if cfg.Handler == config.HandlerStock {
		o.DB = db
	}
	var told explain.Told
	if q.order != "" {
		told, err = explain.OfOrder(ctx, o, q.order)
	} else {
		told, err = explain.OfKey(ctx, o, q.key, q.tag)
	}
	switch {
	case err != nil:
		return explained{}, a.mysqlError(cfg, err)
	case q.order != "" && len(told.Messages)+len(told.Reservations) == 0:
		return explained{}, fmt.Errorf("nothing is known of order %q: no reservation, no message that names it\nNot seen: %s",
			q.order, told.Unseen[len(told.Unseen)-1])
	case q.order == "" && len(told.Messages) == 0:
		return explained{}, noSuchKey(a, cfg, q.key, q.tag)
	}
	return a.explainAll(ctx, cfg, records, told, q)
}

// explainAll adds what the lock and, if asked for, the dead-letter queue say.
func (a *app) explainAll(
	ctx context.Context, cfg config.Config, records *dedup.Log, told explain.Told, q question,
) (explained, error) {
	show, closeLock, err := a.locks(ctx, cfg, records)
	if err != nil {
		return explained{}, err
	}
	defer closeLock()
	copies := func(row dedup.Row) string { return explain.CopiesText(row, cfg.Queue) }
	if q.queue {
		if copies, err = a.countLetters(ctx, cfg, records, told); err != nil {
			return explained{}, a.lettersError(cfg, err)
		}
	}
	x := explained{
		Order: q.order, Reservations: explain.ReservedOf(told.Reservations), Unseen: told.Unseen,
		Messages: []explain.Explanation{},
	}
	if x.Unseen == nil {
		x.Unseen = []string{}
	}
	names := explain.Names{Queue: cfg.Queue, MaxAttempts: cfg.MaxAttempts, Program: a.name}
	for _, m := range told.Messages {
		e := explain.Explain(m, names)
		e.Lock, e.Copies = show(m.Row.Identity), copies(m.Row)
		x.Messages = append(x.Messages, e)
	}
	return x, nil
}

// countLetters reads the whole dead-letter queue once.
func (a *app) countLetters(
	ctx context.Context, cfg config.Config, records *dedup.Log, told explain.Told,
) (func(dedup.Row) string, error) {
	letters, err := deadletter.New(deadletter.Options{
		Records: records, AMQPURLs: cfg.AMQPURLs, Name: rabbit.ConnectionName("log"),
		Group: cfg.Group, Queue: cfg.Queue, KeyFrom: cfg.KeyFrom, Retention: cfg.Retention(),
	})
	if err != nil {
		return nil, err
	}
	count := map[dedup.Identity]int{}
	for _, m := range told.Messages {
		count[m.Row.Identity] = 0
	}
	res, err := letters.Survey(ctx, deadletter.SurveyOptions{Each: func(s deadletter.Surveyed) error {
		if n, ok := count[s.Row.Identity]; ok {
			count[s.Row.Identity] = n + 1
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return func(row dedup.Row) string {
		text := fmt.Sprintf("%d of the %d letters in %s", count[row.Identity], res.Seen, letters.Queue())
		if res.Others > 0 {
			text += "; somebody else was reading it, so there may be more"
		}
		return text
	}, nil
}

func noSuchKey(a *app, cfg config.Config, key, tag string) error {
	where := fmt.Sprintf("group %s", cfg.Group)
	if tag != "" {
		where += fmt.Sprintf(" under tag %q", tag)
	}
	return fmt.Errorf(`the consumer log knows no key %q in %s
It may not have been published or consumed yet, its row may have outlived ROLLBACKD_LOG_RETENTION (%v), or the key is
another one: ROLLBACKD_KEY_FROM is %s. What could not be identified stands under a key of rollbackd's own:
'%s dlq list --tag rollbackd.unidentified', and --tag rollbackd.conflict`, key, where, cfg.LogRetention, cfg.KeyFrom,
		a.name)
}

// locks returns what says in words who holds the lock of a key. A lock's server that is away is no reason to tell
// nothing.
func (a *app) locks(
	ctx context.Context, cfg config.Config, records *dedup.Log,
) (func(dedup.Identity) string, func(), error) {
	if cfg.Lock == lock.KindOff {
		return func(dedup.Identity) string { return explain.NoLock }, func() {}, nil
	}
	locker, closeLock, err := a.openLock(ctx, cfg, "log")
	if err != nil {
		return nil, nil, err
	}
	schema, err := records.SchemaID(ctx)
	if err != nil {
		closeLock()
		return nil, nil, a.mysqlError(cfg, err)
	}
	return func(k dedup.Identity) string {
		state, err := locker.Show(ctx, lock.NameOf(schema, k.Group, k.Tag, k.Key))
		if err != nil {
			return fmt.Sprintf("unknown: %v; %s is %s", err, lockSetting(cfg), shown(cfg, lockSetting(cfg)))
		}
		return explain.LockText(state)
	}, closeLock, nil
}
