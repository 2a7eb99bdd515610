package pages

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// editable are the tags of those letters of a key that can be edited: none where there is no outbox to put them into.
func (p *Pages) editable(ctx context.Context, letters []deadletter.Shown) (map[string]bool, error) {
	tags := map[string]bool{}
	if p.view.Options().Hide.Any() || p.view.Outbox().Value == nil {
		return tags, nil
	}
	for _, l := range letters {
		_, err := p.view.Editable(ctx, operator.MessageName{Tag: l.Tag, Key: l.Key})
		if err != nil && !errors.Is(err, deadletter.ErrNoEdit) {
			return nil, err
		}
		tags[l.Tag] = err == nil
	}
	return tags, nil
}

// edit shows a dead letter as it can be edited.
func (p *Pages) edit(ctx context.Context, r *http.Request, d *drawn) error {
	q := r.URL.Query()
	was, err := p.view.Editable(ctx, operator.MessageName{Tag: q.Get("tag"), Key: q.Get("key")})
	if err != nil {
		return err
	}
	d.Title, d.Data = "Edit a dead letter", editPage(was, was.EditRequest)
	return nil
}

// editPage is what the page shows: the letter as it was, and as it is to be.
func editPage(was operator.Editable, asked operator.EditRequest) shown {
	return shown{
		"Was": was, "Asked": asked, "Headers": jsonOf(asked.Headers), "Preview": nil, "Lines": nil, "Token": "", "Rows": nil,
		"Sends": "",
	}
}

func jsonOf(headers map[string]any) string {
	text, _ := json.MarshalIndent(headers, "", "  ") // which were read from JSON, or can be written
	return string(text)
}

// edited shows what differs in an edited letter, and what it would do, with the form that sends it. It changes nothing.
func (p *Pages) edited(ctx context.Context, r *http.Request, d *drawn) error {
	r.Body = http.MaxBytesReader(nil, r.Body, maxActForm)
	if err := r.ParseForm(); err != nil {
		return refuse(http.StatusBadRequest, "The form could not be read: %v", err)
	}
	asked, err := editAsked(r)
	if err != nil {
		return err
	}
	was, err := p.view.Editable(ctx, operator.MessageName{Tag: asked.Tag, Key: asked.Key})
	if err != nil {
		return err
	}
	found, err := p.desk.PreviewEdit(ctx, asked)
	if errors.Is(err, deadletter.ErrNoEdit) {
		return refuse(http.StatusUnprocessableEntity, "%v. Nothing was done: go back to what you have written.", err)
	}
	if err != nil {
		return err
	}
	show := editPage(was, asked)
	if show["Token"], err = p.token(ctx, r, d); err != nil {
		return err
	}
	show["Preview"], show["Sends"], show["Late"] = found, setOf(asked), false
	if o := p.view.Outbox().Value; o != nil {
		show["Late"] = o.Lag > outboxLate
	}
	show["Lines"] = slices.Concat(difference(jsonOf(was.Headers), jsonOf(asked.Headers)),
		difference(pretty(was.Body), pretty(asked.Body)))
	if found.Rehearsed != nil {
		show["Rows"] = operator.RehearsalGroup{Changed: found.Rehearsed.Changed}.Rows()
	}
	d.Title, d.Data = "What an edited letter would do", show
	return nil
}

// editAsked reads the form of either page.
func editAsked(r *http.Request) (asked operator.EditRequest, err error) {
	if form := r.PostForm; form.Has("set") {
		if err := readSet(r, &asked); err != nil {
			return asked, refuse(http.StatusBadRequest, "The form does not say which letter: open it from its page.")
		}
		asked.Why = strings.TrimSpace(form.Get("why"))
	} else {
		lines := strings.NewReplacer("\r\n", "\n") // as browsers send each line
		asked = operator.EditRequest{Tag: form.Get("tag"), Key: form.Get("key"), Body: lines.Replace(form.Get("body"))}
		if text := strings.TrimSpace(form.Get("headers")); text != "" {
			if err := json.Unmarshal([]byte(text), &asked.Headers); err != nil {
				return asked, refuse(http.StatusUnprocessableEntity,
					"The headers are no JSON object: %v. Nothing was done: go back to what you have written.", err)
			}
		}
	}
	return asked, nil
}

// line is one of a text that differs from another: its sign is - where it was taken out, + where it is new.
type line struct{ Sign, Text string }

// around is how many lines before and behind a difference are shown.
const around = 2

// difference is what differs between two texts: from the first line that does to the last one.
func difference(was, is string) (all []line) {
	if was == is {
		return nil
	}
	old, now := strings.Split(was, "\n"), strings.Split(is, "\n")
	head, tail := 0, 0
	for head < min(len(old), len(now)) && old[head] == now[head] {
		head++
	}
	for tail < min(len(old), len(now))-head && old[len(old)-1-tail] == now[len(now)-1-tail] {
		tail++
	}
	add := func(sign string, lines []string) {
		for _, text := range lines {
			all = append(all, line{sign, text})
		}
	}
	add(" ", old[max(0, head-around):head])
	add("-", old[head:len(old)-tail])
	add("+", now[head:len(now)-tail])
	add(" ", old[len(old)-tail:min(len(old), len(old)-tail+around)])
	return all
}
