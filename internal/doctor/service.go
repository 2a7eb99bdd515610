package doctor

import (
	"context"
	"fmt"
	"net/http"

	"github.com/rollbackd/rollbackd/internal/config"
	httphandler "github.com/rollbackd/rollbackd/internal/handler/http"
)

// checkService asks whether the service of handler http answers. It gets no message: what it would say to one is not
// known from that.
func checkService(ctx context.Context, cfg config.Config, l *list) {
	const name = "answer"
	if cfg.Handler != config.HandlerHTTP {
		return
	}
	status, err := httphandler.Ask(ctx, httphandler.Options{
		Target: cfg.HTTPTarget, Timeout: cfg.HTTPTimeout, Concurrency: 1,
		CAFile: cfg.HTTPTLSCAFile, CertFile: cfg.HTTPTLSCertFile, KeyFile: cfg.HTTPTLSKeyFile,
		Token: func() string { return cfg.HTTPToken },
	})
	found := fmt.Sprintf("it answers a HEAD request with %d %s", status, http.StatusText(status))
	switch {
	case err != nil:
		l.fail(name, err.Error(), "is the service running, and reached from here? See ROLLBACKD_HTTP_TARGET and "+
			"ROLLBACKD_HTTP_TLS_CA_FILE. While it is away the daemon waits")
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusProxyAuthRequired:
		l.warn(name, found, "see ROLLBACKD_HTTP_TOKEN and ROLLBACKD_HTTP_TLS_CERT_FILE: if a POST is answered so, nothing "+
			"is consumed")
	case status >= 300 && status <= 399:
		l.warn(name, found, "redirects are not followed: give ROLLBACKD_HTTP_TARGET the last address")
	case status == http.StatusNotFound, status == http.StatusGone:
		l.warn(name, found, "see the path of ROLLBACKD_HTTP_TARGET: if a POST is answered so, every message is dead-lettered")
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		l.warn(name, found, "the service behind that address is away: the daemon waits for it")
	default:
		l.ok(name, found)
	}
}
