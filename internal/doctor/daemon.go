package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/config"
	httphandler "github.com/rollbackd/rollbackd/internal/handler/http"
)

// lookAtDaemon asks the daemon that answers where these settings say, and repeats what it misses: what it has met, a
// queue that ends its connections or refuses its copies, nobody sees from outside.
func lookAtDaemon(ctx context.Context, a *area) {
	_, port, _ := net.SplitHostPort(a.HTTPAddr)
	if a.HTTPAddr == "" || port == "0" {
		a.tell("answer", noteIf(a.HTTPAddr == "", "not asked for: ROLLBACKD_HTTP_ADDR is off; what a daemon misses stands "+
			"in its log only"), noteIf(true, "not asked for: ROLLBACKD_HTTP_ADDR is "+a.HTTPAddr+
			", which is another port each time; the daemon's log says which, and its /readyz what it misses"))
		return
	}
	said, err := server.Ask(ctx, a.HTTPAddr, "")
	if err == nil && said.Group == a.Group && said.Queue == a.Queue && a.AdminToken != "" { // no stranger's
		said, err = server.Ask(ctx, a.HTTPAddr, a.AdminToken)
	}
	if err != nil {
		a.tell("answer",
			noteIf(errors.Is(err, server.ErrNobody), "no daemon answers at ROLLBACKD_HTTP_ADDR, which is no fault when none "+
				"runs on this machine or in this container; where one runs, doctor repeats what it misses. "+err.Error()),
			warnIf(errors.Is(err, server.ErrSilent), a.HTTPAddr+": "+err.Error(), "is the daemon frozen, or this machine "+
				"overloaded? See its log"),
			warnIf(errors.Is(err, server.ErrStranger), a.HTTPAddr+": "+err.Error(), "no daemon can listen there beside it: "+
				"choose another ROLLBACKD_HTTP_ADDR"),
			warnIf(true, err.Error(), "see ROLLBACKD_HTTP_ADDR"))
		return
	}
	who := fmt.Sprintf("the daemon at %s, group %s, queue %s,", said.From, said.Group, said.Queue)
	stranger := said.Group != a.Group || said.Queue != a.Queue
	a.tell("answer",
		warnIf(stranger, fmt.Sprintf("%s is not that of these settings, group %s, queue %s: what it misses is not "+
			"repeated", who, a.Group, a.Queue), "run doctor with the settings of that daemon, or give each daemon of a machine "+
			"a ROLLBACKD_HTTP_ADDR of its own"),
		noteIf(said.PagesOnly, who+" only shows pages (serve)"),
		okIf(said.Ready, who+" takes deliveries"),
		noteIf(true, who+" takes no deliveries now"))
	if stranger {
		return
	}
	a.tell("draining", noteIf(said.Draining, "a stop was asked for: the daemon finishes what it has in hand"))
	for _, what := range said.Waiting {
		name, _, _ := strings.Cut(what, ": ")
		a.tell("waiting",
			warnIf(what == server.NotConnected, what, "ask again: the daemon starts, or is between two connections"),
			noteIf(name == consumer.PausedByPerson, what),
			failIf(true, what, "the daemon takes nothing until that is mended; its log says since when"))
	}
	for _, what := range said.Degraded {
		a.warn("degraded", what, "do what the daemon says; its log says since when")
	}
}

// lookAtService asks whether the service of handler http answers. It gets no message: what it would say to one is not
// known from that.
func lookAtService(ctx context.Context, a *area) {
	if a.Handler != config.HandlerHTTP {
		return
	}
	status, err := httphandler.Ask(ctx, httphandler.Options{
		Target: a.HTTPTarget, Timeout: a.HTTPTimeout, Concurrency: 1,
		CAFile: a.HTTPTLSCAFile, CertFile: a.HTTPTLSCertFile, KeyFile: a.HTTPTLSKeyFile,
		Token: func() string { return a.HTTPToken },
	})
	if a.failed("answer", err, "is the service running, and reached from here? See ROLLBACKD_HTTP_TARGET and "+
		"ROLLBACKD_HTTP_TLS_CA_FILE. While it is away the daemon waits") {
		return
	}
	const refused, gone, away = "see ROLLBACKD_HTTP_TOKEN and ROLLBACKD_HTTP_TLS_CERT_FILE: if a POST is answered so, " +
		"nothing is consumed", "see the path of ROLLBACKD_HTTP_TARGET: if a POST is answered so, every message is " +
		"dead-lettered", "the service behind that address is away: the daemon waits for it"
	do := map[int]string{
		http.StatusUnauthorized: refused, http.StatusForbidden: refused, http.StatusProxyAuthRequired: refused,
		http.StatusNotFound: gone, http.StatusGone: gone,
		http.StatusBadGateway: away, http.StatusServiceUnavailable: away, http.StatusGatewayTimeout: away,
	}[status]
	if status >= 300 && status <= 399 {
		do = "redirects are not followed: give ROLLBACKD_HTTP_TARGET the last address"
	}
	found := fmt.Sprintf("it answers a HEAD request with %d %s", status, http.StatusText(status))
	a.tell("answer", warnIf(do != "", found, do), fine(found))
}
