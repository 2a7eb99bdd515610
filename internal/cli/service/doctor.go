package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/screen"
)

var doctorCommand = command.Command{
	Use:   "doctor",
	Short: "Check every dependency, name, limit and right, and say what to do",
	Long: `Check RabbitMQ, MySQL, Redis, the settings and this host: whether all is reachable, new enough, named and
configured as it must be, and whether the user may do what the daemon does. A daemon that answers at ROLLBACKD_HTTP_ADDR
is asked what it misses, such as a queue that ends its connections or refuses its copies, which nobody sees from
outside. Each line says what was found and what to do about it:

  ok    as it must be
  note  cannot be checked from here, or is only to be known
  warn  works, but not as well or as safely as it could
  fail  the daemon cannot work, or not keep its promise

What is to be done stands behind an arrow. Lines have at most 100 columns; with -o json each check is one value.

The exit code is 1 when something fails. Nothing is changed: no message is published that a queue could take.`,
	Flags: func(f *command.Flags) command.Work {
		ofRelay := f.Only("outbox", "check only what a relay of its own needs", relayAsks...)
		return func(ctx context.Context, c *command.Call) error {
			checks := doctor.Run(ctx, c.Config, c.Program, *ofRelay)
			if err := ctx.Err(); err != nil {
				return err // what it cut short says nothing
			}
			failed := 0
			for _, check := range checks {
				if check.Level == doctor.Fail {
					failed++
				}
			}
			err := c.Print(checks, func(p *command.Page) { writeChecks(p, checks) })
			if failed > 0 {
				err = errors.Join(err, fmt.Errorf("checks that fail: %d", failed))
			}
			return err
		}
	},
}

// doctorWide is how many columns the lines of doctor have, but for a word that is longer.
const doctorWide = 100

// checks adds checks: what was found behind the names, and below it what to do.
func writeChecks(p *command.Page, checks []doctor.Check) {
	area := len("AREA")
	for _, c := range checks {
		area = max(area, utf8.RuneCountInString(c.Area))
	}
	room := doctorWide - len("LEVEL") - area - 4
	p.Addf("LEVEL  %-*s  CHECK: FOUND\n", area, "AREA")
	for _, c := range checks {
		lines := folded(screen.Printable(c.Name+": "+c.Found), room)
		for i, do := range folded(screen.Printable(c.Do), room-2) {
			lines = append(lines, map[bool]string{true: "→ ", false: "  "}[i == 0]+do)
		}
		level, where := string(c.Level), c.Area
		for _, text := range lines {
			p.Addf("%-5s  %-*s  %s\n", level, area, where, text)
			level, where = "", ""
		}
	}
}

// folded are the words of a text in lines of at most so many characters, but for a word that has more.
func folded(text string, room int) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		last := len(lines) - 1
		if last >= 0 && utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word) <= room {
			lines[last] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}

var probeCommand = command.Command{
	Use:   "probe",
	Short: "Ask the daemon on this machine whether it is alive, or ready",
	Long: `Ask the daemon that listens at ROLLBACKD_HTTP_ADDR, for a container's HEALTHCHECK: an image without a shell has
nothing else to ask with. No other setting is looked at, and no server is asked.

The exit code is 0 when the daemon is alive, or with --ready when it takes deliveries; 1 when it is not, or when nobody
answers in time; 2 when it cannot be asked. A daemon whose dependency is away is alive, and not ready: restarting it
would not help.`,
	Needs: command.NeedsNothing,
	Forms: command.NoForm,
	Flags: func(f *command.Flags) command.Work {
		ready := f.Bool("ready", false, "ask whether it takes deliveries, and not only whether it is alive")
		limit := f.Duration("timeout", 3*time.Second, "give up after this time, 100ms to 1m")
		return func(ctx context.Context, c *command.Call) error {
			if *limit < 100*time.Millisecond || *limit > time.Minute {
				return command.Usagef("--timeout must be from 100ms to 1m, not %v", *limit)
			}
			addr, err := probed(c.Environ)
			if err != nil {
				return err
			}
			ask := server.Alive
			if *ready {
				ask = server.Ready
			}
			err = ask(ctx, addr, *limit)
			if errors.Is(err, server.ErrStuck) || errors.Is(err, server.ErrNotReady) || err == nil {
				return err
			}
			return command.Said(fmt.Errorf("no daemon answers at ROLLBACKD_HTTP_ADDR %s: %w", addr, err))
		}
	},
}

// probed is the address to ask.
func probed(environ []string) (string, error) {
	addr, err := config.HTTPAddr(environ)
	if err != nil {
		return "", command.Usagef("a setting is wrong:\n  %w", err)
	}
	if addr == "" {
		return "", command.Usagef("ROLLBACKD_HTTP_ADDR is off: a daemon that listens nowhere cannot be asked")
	}
	if _, port, err := net.SplitHostPort(addr); err == nil && port == "0" {
		return "", command.Usagef("ROLLBACKD_HTTP_ADDR is %s, which is another port each time: give it a number", addr)
	}
	return addr, nil
}
