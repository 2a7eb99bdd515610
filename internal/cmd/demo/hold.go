package main

import (
	"fmt"
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
	broken := shop.Orders(d.rng, "broken", brokenOrders, skus)
	d.send(d.dying(broken), nil)
	d.ended(orders+unknownOrders, malformed+conflicts+brokenOrders)
	addr := must.Get(d.daemon.Addr(d.ctx))
	commands, asked := d.leaveCommands(addr)
	d.say(`
It stays up until Ctrl-C. The stock of the order %[1]s has not come back. Why?

  page         http://%[2]s/ asks for no token from this machine
  api          curl -s 'http://%[2]s/api/v1/order?sn=%[1]s' | jq .      # docs/api.md says how it goes on
  commands     . %[3]s      # rollbackd then works in this shell
               rollbackd dlq list
               rollbackd log explain --order %[1]s
  mend         rm %[4]s      # the %[5]d orders are written, as if their service had been late
  replay       rollbackd dlq replay --reason %[6]s
`, broken[0].SN, addr, commands, asked, len(broken), dedup.ReasonExhausted)
	d.mendWhenAsked(broken, asked)
}

// leaveCommands writes what a person's shell sources, with the daemon's address, and the file whose removal mends the
// orders.
func (d *demo) leaveCommands(addr string) (commands, asked string) {
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
	must.OK(os.WriteFile(commands, []byte(b.String()), 0o600))
	must.OK(os.WriteFile(asked, nil, 0o600))
	return commands, asked
}

// mendWhenAsked waits for the end, and writes the broken orders when their file is removed.
func (d *demo) mendWhenAsked(broken []shop.Order, asked string) {
	const years = 1 << 30 * time.Second
	err := must.Catch(func() {
		d.until("their end", years, 200*time.Millisecond, func() bool { _, err := os.Stat(asked); return err != nil })
		d.reserve(broken)
		d.say("mended: now their letters can be replayed")
		d.until("the end", years, time.Second, func() bool { return false })
	})
	if d.ctx.Err() == nil {
		must.OK(err)
	}
}
