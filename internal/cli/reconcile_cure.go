package cli

import (
	"time"

	"github.com/rollbackd/rollbackd/internal/reconcile"
)

// curedReport is a report whose findings say the command that mends them.
type curedReport struct {
	reconcile.Report
	Findings []curedFinding `json:"findings"`
}

type curedFinding struct {
	reconcile.Finding
	Cure string `json:"cure,omitempty"`
}

func withCommands(r reconcile.Report, program string, now time.Time) curedReport {
	c := curedReport{r, []curedFinding{}}
	for _, f := range r.Findings {
		one := curedFinding{Finding: f}
		if !f.Mended {
			one.Cure = f.Cure(program, now)
		}
		c.Findings = append(c.Findings, one)
	}
	return c
}
