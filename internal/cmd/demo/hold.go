package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// brokenOrders are those that a person finds, mends and replays by hand while the demo holds.
const brokenOrders = 3

// hold stays up after the report, with a daemon and with dead letters for a person, until it is interrupted, which is
// then no failure.
func (d *demo) hold(ctx context.Context) error {
	if err := d.startDaemon(ctx); err != nil {
		return err
	}
	broken := d.ordersOf("broken", 0, brokenOrders)
	route := shop.Route{Exchange: d.cfg.Exchange, Key: d.cfg.RoutingKeys[0]}
	var sent []oracle.Sent
	for _, o := range broken {
		s := route.Rollback(o)
		s.Fate = oracle.ToDie(dedup.ReasonExhausted)
		sent = append(sent, s)
	}
	p := rabbit.NewPublisher(rabbit.Config{URLs: d.cfg.AMQPURLs, Name: rabbit.ConnectionName("demo")})
	err := shop.Publish(ctx, p, d.ledger, sent, nil)
	_ = p.Close(ctx) // everything is confirmed, or err says what was not
	if err != nil {
		return err
	}
	if err := d.ended(ctx, orders+unknownOrders, malformed+conflicts+brokenOrders); err != nil {
		return fmt.Errorf("wait for the dead letters to be mended by hand: %w", err)
	}
	addr, err := d.daemon.Addr(ctx)
	if err != nil {
		return err
	}
	page := "/"
	if status, _, err := d.daemon.Get(ctx, page); err != nil {
		return err
	} else if status == http.StatusNotFound {
		page = "/readyz" // a daemon without pages
	}
	commands, mend, err := d.leaveCommands(addr)
	if err != nil {
		return err
	}
	d.say(`
It stays up until Ctrl-C. The stock of the order %[1]s has not come back. Why?

  page         http://%[2]s%[3]s asks for no token from this machine
  api          curl -s 'http://%[2]s/api/v1/order?sn=%[1]s' | jq .      # docs/api.md says how it goes on
  commands     . %[4]s      # rollbackd then works in this shell
               rollbackd dlq list
               rollbackd log explain --order %[1]s
  mend         %[5]s      # the %[6]d orders are written, as if their service had been late
  replay       rollbackd dlq replay --reason %[7]s
`, broken[0].SN, addr, page, commands, mend, len(broken), dedup.ReasonExhausted)
	return d.mendWhenAsked(ctx, broken, mend)
}

// leaveCommands writes what a person's shell sources, with the daemon's address, and names the file whose removal mends
// the orders.
func (d *demo) leaveCommands(addr string) (commands, mend string, err error) {
	commands, asked := filepath.Join(d.dir, "env.sh"), filepath.Join(d.dir, "broken")
	var b strings.Builder
	for _, entry := range d.env {
		name, value, _ := strings.Cut(entry, "=")
		if name == config.Prefix+"HTTP_ADDR" {
			value = addr // the settings ask for any free port: doctor and probe look for the daemon where it is
		}
		fmt.Fprintf(&b, "export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
	}
	fmt.Fprintf(&b, "rollbackd() { %s \"$@\"; }\n", d.binary)
	if err := os.WriteFile(commands, []byte(b.String()), 0o600); err != nil {
		return "", "", fmt.Errorf("write the commands' settings: %w", err)
	}
	if err := os.WriteFile(asked, nil, 0o600); err != nil {
		return "", "", fmt.Errorf("write the file that mends: %w", err)
	}
	return commands, "rm " + asked, nil
}

// mendWhenAsked waits for the end, and writes the broken orders when their file is removed.
func (d *demo) mendWhenAsked(ctx context.Context, broken []shop.Order, mend string) error {
	asked := strings.TrimPrefix(mend, "rm ")
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	mended := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.daemon.Exited():
			return fmt.Errorf("the daemon ended; its last words:\n%s", d.lastWords())
		case <-tick.C:
		}
		if mended {
			continue
		}
		if _, err := os.Stat(asked); !os.IsNotExist(err) {
			continue
		}
		if err := d.reserveAll(ctx, broken); err != nil {
			return fmt.Errorf("mend the orders: %w", err)
		}
		mended = true
		d.say("mended: now their letters can be replayed")
	}
}
