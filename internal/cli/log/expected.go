package log

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// expected says where the messages are that a file's SELECT says should have come.
func expected(ctx context.Context, c *command.Call, file, by, why string, o operator.Expectation) (err error) {
	if o.Query, err = c.Query(file, "--expected"); err != nil {
		return err
	}
	var e operator.Expected
	err = c.Act(ctx, by, !o.Publish, operator.TaskRequest{Kind: operator.KindExpected, Why: why,
		Detail: operator.ExpectedRequest{File: filepath.Base(file), Publish: o.Publish, Force: o.Force},
	}, func(ctx context.Context, task operator.Task) (_ operator.Result, err error) {
		c.SayUnknownGroup(ctx)
		o.Lookup, o.Letters, o.Progress = c.Lookup, c.Letters, func(what string, seen int) {
			c.Progress.Draw(fmt.Sprintf("%d %s", seen, what), 0, 0)
			task.Progress(what, seen)
		}
		e, err = o.Run(ctx)
		return operator.Result{Retried: e.Put, LeftCount: e.Open}, err
	})
	if err != nil && e.Seen == 0 {
		return err
	}
	err = errors.Join(c.Print(e, func(p *command.Page) { writeExpected(p, e) }), c.Hinted(err))
	if e.Open > 0 {
		err = errors.Join(err, fmt.Errorf("messages that did not come: %d", e.Open))
	}
	return err
}

func writeExpected(p *command.Page, e operator.Expected) {
	where := command.Table{Header: []string{"MESSAGES", "WHERE", "MEANS"}}
	first := command.Table{Header: []string{"WHERE", "TAG", "KEY", "SINCE", "WHY"}}
	for _, f := range e.Found {
		where.Add(f.Count, f.Where, f.Means)
		for _, a := range f.First {
			first.Add(f.Where, a.Tag, a.Key, command.Date(a.Since), screen.Shorten(a.Why, 200))
		}
	}
	p.Table(where)
	if len(first.Rows) > 0 {
		p.Addf("\n")
		p.Table(first)
	}
	p.Addf("\nThe SELECT names %s.", command.Plural(e.Seen, "message"))
	if e.Queued > 0 {
		p.Addf(" The main queue holds %s.", command.Plural(e.Queued, "message"))
	}
	p.Addf("\n")
}
