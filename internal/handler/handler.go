// Package handler has the kinds of handlers, each in a folder below it. Who adds one adds the word to those of
// ROLLBACKD_HANDLER in internal/config, with the settings that it needs, and here a row that makes it of them. It must
// not know what becomes of a message.
package handler

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/config"
	httphandler "github.com/rollbackd/rollbackd/internal/handler/http"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	stockhandler "github.com/rollbackd/rollbackd/internal/handler/stock"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/stock"
)

// Options are the settings, and what a handler needs beside them.
type Options struct {
	config.Config

	Fresh    func(key string) func() string // a secret as it is now
	Registry prometheus.Registerer
	Logger   *slog.Logger
}

// Check asks the database whether a handler can work there, before any message meets it. While the database is away it
// waits, and says why.
type Check func(ctx context.Context, waiting func(error)) error

var kinds = map[string]struct {
	open    func(context.Context, Options) (consumer.Handler, Check, error)
	orderOf func(body []byte) (string, bool) // nil: its bodies name no order
}{
	config.HandlerStock: {openStock, stockhandler.OrderOf},
	config.HandlerSQL:   {open: openSQL},
	config.HandlerHTTP:  {open: openHTTP},
}

// Open makes the handler that the settings name; its check is nil when there is nothing to ask.
func Open(ctx context.Context, o Options) (consumer.Handler, Check, error) {
	return kinds[o.Handler].open(ctx, o)
}

// OrderOf finds the order that a body is about; nil for a kind whose bodies name none.
func OrderOf(kind string) func(body []byte) (string, bool) { return kinds[kind].orderOf }

func openStock(_ context.Context, o Options) (consumer.Handler, Check, error) {
	empty := stock.Retry
	if o.EmptyRollback == config.EmptyRollbackRefuse {
		empty = stock.Refuse
	}
	return stockhandler.New(stock.Options{Empty: empty}, o.Emit != ""), nil, nil
}

func openSQL(_ context.Context, o Options) (consumer.Handler, Check, error) {
	file, err := sqlhandler.Load(o.SQLFile, o.OwnTables())
	if err != nil {
		return nil, nil, err
	}
	return sqlhandler.New(file), func(ctx context.Context, waiting func(error)) error {
		return file.Await(ctx, sqlhandler.Server{
			DSN: o.MySQLDSN, Logger: o.Logger, Waiting: waiting,
			Options: mysqldb.Options{Program: rabbit.ConnectionName("check"), CurrentDSN: o.Config.Config.Fresh.MySQLDSN},
		})
	}, nil
}

func openHTTP(ctx context.Context, o Options) (consumer.Handler, Check, error) {
	repeated := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "rollbackd_calls_repeated_total", Help: "Calls made once more, as a connection used before was dead.",
	})
	if err := o.Registry.Register(repeated); err != nil {
		return nil, nil, err
	}
	secrets := o.Fresh("HTTP_HMAC_SECRET")
	h, err := httphandler.New(httphandler.Options{
		Target: o.HTTPTarget, Timeout: o.HTTPTimeout, Concurrency: o.HTTPConcurrency,
		CAFile: o.HTTPTLSCAFile, CertFile: o.HTTPTLSCertFile, KeyFile: o.HTTPTLSKeyFile,
		Token: o.Fresh("HTTP_TOKEN"), Secrets: func() []string { return config.Lines(secrets()) }, Repeated: repeated.Inc,
		Warn: func(err error) { o.Logger.WarnContext(ctx, "handler http", "err", err) },
	})
	return h, nil, err
}
