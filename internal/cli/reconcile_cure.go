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

// Open counts the findings that are not mended.
func (r curedReport) Open() (n int) {
	for _, f := range r.Findings {
		if !f.Mended {
			n++
		}
	}
	return n
}

type curedFinding struct {
	reconcile.Finding
	Cure string `json:"cure,omitempty"`
}

func withCommands(r reconcile.Report, program string, now time.Time) curedReport {
	c := curedReport{Report: r, Findings: []curedFinding{}}
	for _, f := range r.Findings {
		one := curedFinding{Finding: f}
		if !f.Mended {
			one.Cure = f.Cure(program, now)
		}
		c.Findings = append(c.Findings, one)
	}
	return c
}
