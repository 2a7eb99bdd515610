package main

import (
	"errors"
	"fmt"

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
		t := table{header: []string{"LEVEL", "AREA", "CHECK", "FOUND", "WHAT TO DO"}}
		failed := 0
		for _, c := range checks {
			t.add(c.Level, c.Area, c.Name, c.Found, c.Do)
			if c.Level == doctor.Fail {
				failed++
			}
		}
		err = out.render(a.stdout, checks, t)
		if failed > 0 {
			err = errors.Join(err, fmt.Errorf("checks that fail: %d", failed))
		}
		return err
	}
	return cmd
}
