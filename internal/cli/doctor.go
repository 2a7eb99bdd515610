package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

func newDoctorCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
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
		Args: cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		checks := doctor.Run(cmd.Context(), cfg, doctor.Options{
			Program: a.name, Name: rabbit.ConnectionName("doctor"), MySQL: shown(cfg, "ROLLBACKD_MYSQL_DSN"),
			Redis: shown(cfg, "ROLLBACKD_REDIS_URL"),
		})
		if err := cmd.Context().Err(); err != nil {
			return err // what it cut short says nothing
		}
		failed := 0
		for _, c := range checks {
			if c.Level == doctor.Fail {
				failed++
			}
		}
		if out.chosen == outputJSON {
			err = writeJSON(a.stdout, checks)
		} else {
			err = writeChecks(a.stdout, checks)
		}
		if failed > 0 {
			err = errors.Join(err, fmt.Errorf("checks that fail: %d", failed))
		}
		return err
	}
	return cmd
}

// doctorWide is how many columns the lines of doctor have, but for a word that is longer.
const doctorWide = 100

// writeChecks writes checks for a screen: what was found behind the names, and below it what to do.
func writeChecks(w io.Writer, checks []doctor.Check) error {
	var out strings.Builder
	area := len("AREA")
	for _, c := range checks {
		area = max(area, utf8.RuneCountInString(c.Area))
	}
	room := doctorWide - len("LEVEL") - area - 4
	fmt.Fprintf(&out, "LEVEL  %-*s  CHECK: FOUND\n", area, "AREA")
	for _, c := range checks {
		lines := folded(printable(c.Name+": "+c.Found), room)
		for i, do := range folded(printable(c.Do), room-2) {
			lines = append(lines, map[bool]string{true: "→ ", false: "  "}[i == 0]+do)
		}
		for i, text := range lines {
			level, where := string(c.Level), c.Area
			if i > 0 {
				level, where = "", ""
			}
			fmt.Fprintf(&out, "%-5s  %-*s  %s\n", level, area, where, text)
		}
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
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
