package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/config"
)

// checkDaemon asks the daemon that answers where these settings say, and repeats what it misses: what it has met, a
// queue that ends its connections or refuses its copies, nobody sees from outside.
func checkDaemon(ctx context.Context, cfg config.Config, l *list) {
	const name = "answer"
	if cfg.HTTPAddr == "" {
		l.note(name, "not asked for: ROLLBACKD_HTTP_ADDR is off; what a daemon misses stands in its log only")
		return
	}
	if _, port, err := net.SplitHostPort(cfg.HTTPAddr); err == nil && port == "0" {
		l.note(name, "not asked for: ROLLBACKD_HTTP_ADDR is "+cfg.HTTPAddr+
			", which is another port each time; the daemon's log says which, and its /readyz what it misses")
		return
	}
	said, err := admin.Ask(ctx, cfg.HTTPAddr, "")
	if err == nil && said.Group == cfg.Group && said.Queue == cfg.Queue && cfg.AdminToken != "" { // no stranger's
		said, err = admin.Ask(ctx, cfg.HTTPAddr, cfg.AdminToken)
	}
	switch {
	case errors.Is(err, admin.ErrNobody):
		l.note(name, "no daemon answers at ROLLBACKD_HTTP_ADDR, which is no fault when none runs on this machine or in "+
			"this container; where one runs, doctor repeats what it misses. "+err.Error())
		return
	case errors.Is(err, admin.ErrSilent):
		l.warn(name, cfg.HTTPAddr+": "+err.Error(), "is the daemon frozen, or this machine overloaded? See its log")
		return
	case errors.Is(err, admin.ErrStranger):
		l.warn(name, cfg.HTTPAddr+": "+err.Error(),
			"no daemon can listen there beside it: choose another ROLLBACKD_HTTP_ADDR")
		return
	case err != nil:
		l.warn(name, err.Error(), "see ROLLBACKD_HTTP_ADDR")
		return
	}
	who := fmt.Sprintf("the daemon at %s, group %s, queue %s,", said.From, said.Group, said.Queue)
	switch {
	case said.Group != cfg.Group || said.Queue != cfg.Queue:
		l.warn(name, fmt.Sprintf("%s is not that of these settings, group %s, queue %s: what it misses is not repeated",
			who, cfg.Group, cfg.Queue),
			"run doctor with the settings of that daemon, or give each daemon of a machine a ROLLBACKD_HTTP_ADDR of its own")
		return
	case said.Ready:
		l.ok(name, who+" takes deliveries")
	default:
		l.note(name, who+" takes no deliveries now")
	}
	if said.Draining {
		l.note("draining", "a stop was asked for: the daemon finishes what it has in hand")
	}
	for _, what := range said.Waiting {
		if what == admin.NotConnected {
			l.warn("waiting", what, "ask again: the daemon starts, or is between two connections")
			continue
		}
		if name, _, _ := strings.Cut(what, ": "); name == consumer.PausedByPerson {
			l.note("waiting", what)
			continue
		}
		l.fail("waiting", what, "the daemon takes nothing until that is mended; its log says since when")
	}
	for _, what := range said.Degraded {
		l.warn("degraded", what, "do what the daemon says; its log says since when")
	}
}
