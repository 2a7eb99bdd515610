package service

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// Given checks whose words are long, then each line of doctor has at most 100 columns, and what to do stands below.
func TestDoctorFitsAHundredColumns(t *testing.T) {
	t.Parallel()
	var out command.Page
	writeChecks(&out, []doctor.Check{
		{Area: "rabbitmq", Name: "reachable", Level: doctor.OK, Found: "yes"},
		{
			Area: "mysql", Name: "rights", Level: doctor.Warn, Found: strings.Repeat("wörd ", 30),
			Do: strings.Repeat("do ", 40),
		},
	})
	want := "LEVEL  AREA      CHECK: FOUND\n" +
		"ok     rabbitmq  reachable: yes\n" +
		"warn   mysql     rights: " + strings.TrimSpace(strings.Repeat("wörd ", 15)) + "\n" +
		"                 " + strings.TrimSpace(strings.Repeat("wörd ", 15)) + "\n" +
		"                 → " + strings.TrimSpace(strings.Repeat("do ", 27)) + "\n" +
		"                   " + strings.TrimSpace(strings.Repeat("do ", 13)) + "\n"
	assert.Is(t, out.String(), want, "doctor writes")
}
