package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// brokenOrders are those that a person finds, mends and replays by hand while the demo holds.
const brokenOrders = 3

// hold stays up after the report, with a daemon and with dead letters for a person, until it is interrupted, which is
// then no failure.
func (d *demo) hold() {
	d.startDaemon()
	broken := d.ordersOf("broken", 0, brokenOrders)
	d.send(d.dying(broken), nil)
	d.ended(orders+unknownOrders, malformed+conflicts+brokenOrders)
	addr := must.Get(d.daemon.Addr(d.ctx))
	page := "/"
	status, _, err := d.daemon.Get(d.ctx, page)
	must.OK(err)
	if status == http.StatusNotFound {
		page = "/readyz" // a daemon without pages
	}
	commands, asked, err := d.leaveCommands(addr)
	must.OK(err)
	d.say(`
It stays up until Ctrl-C. The stock of the order %[1]s has not come back. Why?

  page         http://%[2]s%[3]s asks for no token from this machine
  api          curl -s 'http://%[2]s/api/v1/order?sn=%[1]s' | jq .      # docs/api.md says how it goes on
  commands     . %[4]s      # rollbackd then works in this shell
               rollbackd dlq list
               rollbackd log explain --order %[1]s
  mend         rm %[5]s      # the %[6]d orders are written, as if their service had been late
  replay       rollbackd dlq replay --reason %[7]s
`, broken[0].SN, addr, page, commands, asked, len(broken), dedup.ReasonExhausted)
	d.mendWhenAsked(broken, asked)
}

// leaveCommands writes what a person's shell sources, with the daemon's address, and the file whose removal mends the
// orders.
func (d *demo) leaveCommands(addr string) (commands, asked string, err error) {
	commands, asked = filepath.Join(d.dir, "env.sh"), filepath.Join(d.dir, "broken")
	var b strings.Builder
	for _, entry := range d.env {
		name, value, _ := strings.Cut(entry, "=")
		if name == config.Prefix+"HTTP_ADDR" {
			value = addr // the settings ask for any free port: doctor and probe look for the daemon where it is
		}
		fmt.Fprintf(&b, "export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
	}
	fmt.Fprintf(&b, "rollbackd() { %s \"$@\"; }\n", d.binary)
	return commands, asked, must.Catch(func() {
		must.OK(os.WriteFile(commands, []byte(b.String()), 0o600))
		must.OK(os.WriteFile(asked, nil, 0o600))
	})
}

// mendWhenAsked waits for the end, and writes the broken orders when their file is removed.
func (d *demo) mendWhenAsked(broken []shop.Order, asked string) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for mended := false; ; {
		select {
		case <-d.ctx.Done():
			return
		case <-d.daemon.Exited():
			must.OK(fmt.Errorf("the daemon ended; its last words:\n%s", d.lastWords()))
		case <-tick.C:
		}
		if _, err := os.Stat(asked); os.IsNotExist(err) && !mended {
			d.reserveAll(broken)
			mended = true
			d.say("mended: now their letters can be replayed")
		}
	}
}
