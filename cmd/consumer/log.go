package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
)

func newLogCmd(a *app) *cobra.Command {
	return newGroupCmd("log", "Ask the consumer log", newLogExplainCmd(a))
}

func newLogExplainCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain KEY",
		Short: "Tell all that is known of one message, what it means and what to do next",
		Long: `Tell all that is known of the message with this key: its row in the consumer log, its story in order of time, its lock in
Redis, what that means and what to do next. A key that exists under several tags is told once for each.`,
		Args: cobra.ExactArgs(1),
	}
	out := addOutputFlag(cmd)
	tag := cmd.Flags().String("tag", "", "only the message with this tag")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		told, err := a.explain(cmd.Context(), cfg, args[0], *tag)
		if err != nil {
			return err
		}
		if out.chosen == outputJSON {
			return writeJSON(a.stdout, told)
		}
		var text bytes.Buffer
		for i, e := range told {
			if i > 0 {
				text.WriteString("\n")
			}
			if err := e.write(&text); err != nil {
				return err
			}
		}
		if _, err := text.WriteTo(a.stdout); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
		return nil
	}
	return cmd
}

// explanation is all that is known of one identity. The names of its JSON form are stable.
type explanation struct {
	Group     string     `json:"group"`
	Tag       string     `json:"tag"`
	Key       string     `json:"key"`
	Status    string     `json:"status"`
	Reason    string     `json:"reason,omitempty"` // why it is dead
	Attempts  int        `json:"attempts"`
	Of        int        `json:"max_attempts"`
	Replays   int        `json:"replays"`
	Owner     string     `json:"owner,omitempty"` // of the last claim or replay
	Since     time.Time  `json:"since"`           // the last transition, by the database's clock
	Created   time.Time  `json:"created_at"`
	DeadAt    *time.Time `json:"dead_at,omitempty"`
	Remark    string     `json:"remark,omitempty"`
	MessageID string     `json:"message_id,omitempty"`
	Hash      string     `json:"body_sha256,omitempty"`
	Body      string     `json:"body,omitempty"`       // as it was, when it is UTF-8
	Raw       string     `json:"body_hex,omitempty"`   // when it is not
	Props     string     `json:"properties,omitempty"` // AMQP properties and headers, as JSON
	Lock      string     `json:"lock"`                 // in words
	Story     []event    `json:"story"`                // oldest first
	Means     string     `json:"means"`                // in words
	Next      string     `json:"next"`                 // what to do
}

// event is one step of the story.
type event struct {
	At      time.Time `json:"at"`
	From    string    `json:"from"`
	To      string    `json:"to"`
	Attempt int       `json:"attempt"`
	Replays int       `json:"replays"`
	Owner   string    `json:"owner,omitempty"`
	By      string    `json:"by,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// explain finds the key under all its tags.
func (a *app) explain(ctx context.Context, cfg config.Config, key, tag string) ([]explanation, error) {
	records, closeLog, err := a.openLog(ctx, cfg, "log")
	if err != nil {
		return nil, err
	}
	defer closeLog()
	rows, _, err := records.List(ctx, dedup.Filter{Group: cfg.Group, Keys: []string{key}, Tag: tag, Limit: dedup.MaxListed})
	if err != nil {
		return nil, a.mysqlError(cfg, err)
	}
	if len(rows) == 0 {
		return nil, noSuchKey(a, cfg, key, tag)
	}
	show, closeRedis, err := a.locks(ctx, cfg, records)
	if err != nil {
		return nil, err
	}
	defer closeRedis()
	told := make([]explanation, len(rows))
	for i, row := range rows {
		if told[i], err = explainRow(ctx, cfg, records, row.Key, a.name); err != nil {
			return nil, a.mysqlError(cfg, err)
		}
		told[i].Lock = show(row.Key)
	}
	return told, nil
}

func noSuchKey(a *app, cfg config.Config, key, tag string) error {
	where := fmt.Sprintf("group %s", cfg.Group)
	if tag != "" {
		where += fmt.Sprintf(" under tag %q", tag)
	}
	return fmt.Errorf(`the consumer log knows no key %q in %s
It may not have been published or consumed yet, its row may have outlived ROLLBACKD_LOG_RETENTION (%v), or the key is
another one: ROLLBACKD_KEY_FROM is %s. What could not be identified stands under a key of rollbackd's own:
'%s dlq list --tag rollbackd.unidentified', and --tag rollbackd.conflict`, key, where, cfg.LogRetention, cfg.KeyFrom, a.name)
}

// locks returns what says in words who holds the lock of a key. A Redis that is away is no reason to tell nothing.
func (a *app) locks(ctx context.Context, cfg config.Config, records *dedup.Log) (func(dedup.Key) string, func(), error) {
	client, closeRedis, err := a.openRedis(cfg, "log")
	if err != nil {
		return nil, nil, err
	}
	if client == nil {
		return func(dedup.Key) string { return "no lock is used: ROLLBACKD_REDIS_URL is off" }, closeRedis, nil
	}
	schema, err := records.SchemaID(ctx)
	if err != nil {
		closeRedis()
		return nil, nil, a.mysqlError(cfg, err)
	}
	lock, err := dedup.NewRedisLock(client, dedup.RedisLockOptions{SchemaID: schema})
	if err != nil {
		closeRedis()
		return nil, nil, fmt.Errorf("lock: %w", err)
	}
	return func(k dedup.Key) string {
		state, err := lock.Show(ctx, lock.LockKey(k))
		if err != nil {
			return fmt.Sprintf("unknown: %v; ROLLBACKD_REDIS_URL is %s", err, shown(cfg, "ROLLBACKD_REDIS_URL"))
		}
		return lockText(state)
	}, closeRedis, nil
}

func lockText(s dedup.LockState) string {
	switch {
	case s.Hold == 0:
		return "free"
	case s.Hold == dedup.DoneMarker:
		return fmt.Sprintf("done marker, for another %v", s.TTL.Round(time.Second))
	case s.Token == "":
		return "a value that is not rollbackd's"
	case s.TTL < 0:
		return fmt.Sprintf("held by %s, without an end: rollbackd did not write it", s.Token)
	}
	return fmt.Sprintf("held by %s, for another %v", s.Token, s.TTL.Round(time.Second))
}

func explainRow(ctx context.Context, cfg config.Config, records *dedup.Log, key dedup.Key, program string) (explanation, error) {
	row, rowErr := records.Read(ctx, key)
	story, storyErr := records.Events(ctx, key)
	if err := errors.Join(rowErr, storyErr); err != nil {
		return explanation{}, err
	}
	e := explanation{
		Group: key.Group, Tag: key.Tag, Key: key.Name, Status: row.Status.String(), Reason: row.Reason,
		Attempts: row.Attempts, Of: cfg.MaxAttempts, Replays: row.Replays, Owner: row.Owner,
		Since: row.At, Created: row.CreatedAt, Remark: row.Remark, MessageID: row.MessageID,
		Hash: hex.EncodeToString(row.BodyHash), Props: string(row.Properties),
	}
	if !row.DeadAt.IsZero() {
		e.DeadAt = &row.DeadAt
	}
	if utf8.Valid(row.Body) {
		e.Body = string(row.Body)
	} else {
		e.Raw = hex.EncodeToString(row.Body)
	}
	e.Story = make([]event, len(story))
	for i, s := range story {
		e.Story[i] = event{s.At, s.From.String(), s.To.String(), s.Attempt, s.Replays, s.Owner, s.By, s.Error}
	}
	e.Means, e.Next = meaning(row, cfg, program)
	return e, nil
}

// write tells it to a person.
func (e explanation) write(w io.Writer) error {
	status := e.Status
	if e.Reason != "" && e.DeadAt != nil {
		status += " (" + e.Reason + ")"
	}
	facts := table{header: []string{"identity", fmt.Sprintf("group %s, tag %s, key %s", e.Group, e.Tag, e.Key)}}
	facts.add("status", status+" since "+e.Since.Format(time.RFC3339))
	facts.add("attempts", fmt.Sprintf("%d of %d, replays %d", e.Attempts, e.Of, e.Replays))
	add := func(name, value string) {
		if value != "" {
			facts.add(name, value)
		}
	}
	add("owner", e.Owner)
	add("remark", e.Remark)
	add("message id", e.MessageID)
	add("body sha256", e.Hash)
	add("body", shorten(e.Body, 400))
	add("body in hex", shorten(e.Raw, 400))
	add("lock", e.Lock)
	facts.add("this means", e.Means)
	facts.add("what next", e.Next)
	if err := writeTable(w, facts); err != nil || len(e.Story) == 0 {
		return err
	}
	story := table{header: []string{"AT", "FROM", "TO", "ATTEMPT", "REPLAYS", "BY", "ERROR"}}
	for _, s := range e.Story {
		by := s.By
		if by == "" {
			by = s.Owner
		}
		story.add(s.At.Format("2006-01-02T15:04:05.000Z"), s.From, s.To, s.Attempt, s.Replays, by, shorten(s.Error, 120))
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	return writeTable(w, story)
}
