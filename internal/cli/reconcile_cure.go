package cli

import (
	"time"

	"github.com/rollbackd/rollbackd/internal/operator"
)

// curedReport is a report whose findings say the command that mends them.
type curedReport struct {
	operator.Report
	Findings []curedFinding `json:"findings"`
}

type curedFinding struct {
	operator.Finding
	Cure string `json:"cure,omitempty"`
}

func withCommands(r operator.Report, program string, now time.Time) curedReport {
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
