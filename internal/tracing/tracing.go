package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	// stopTimeout bounds the last export.
	stopTimeout = 3 * time.Second
	// sayEvery is how often it is logged at most that spans are lost.
	sayEvery = time.Minute
)

// Provider takes spans and exports them. Close it.
type Provider struct {
	*sdktrace.TracerProvider
}

// Open makes a provider as the OTEL_ variables of the process say; nil when they ask for none: without an endpoint
// (OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or OTEL_TRACES_EXPORTER=otlp, with
// OTEL_TRACES_EXPORTER=none, and with OTEL_SDK_DISABLED=true. It connects to nothing yet; while the receiver is away
// spans are dropped, and messages do not wait. The SDK reports its troubles through a handler of the process, which
// goes to log from here on.
func Open(ctx context.Context, version string, log *slog.Logger) (*Provider, error) {
	if on, err := wanted(os.Getenv); err != nil || !on {
		return nil, err
	}
	exporter, err := newExporter(ctx, os.Getenv)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "rollbackd"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("traces: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(&sayer{log: log})
	return &Provider{sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))}, nil
}

// Close exports what is left, within three seconds.
func (p *Provider) Close() error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := p.Shutdown(ctx); err != nil {
		return fmt.Errorf("traces: the last spans were not exported: %w", err)
	}
	return nil
}

func wanted(getenv func(string) string) (bool, error) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "otlp":
		return true, nil
	case "":
		return getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "", nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q: want otlp or none", exporter)
	}
}

// newExporter makes the one of the protocol that is asked for; the rest of its settings it reads by itself.
func newExporter(ctx context.Context, getenv func(string) string) (sdktrace.SpanExporter, error) {
	protocol := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"))
	switch protocol {
	case "", "http/protobuf":
		return otlptracehttp.New(ctx)
	case "grpc":
		return otlptracegrpc.New(ctx)
	}
	return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q: want http/protobuf or grpc", protocol)
}

// sayer logs what the SDK could not do, at most once a minute: a receiver may be away for days.
type sayer struct {
	log  *slog.Logger
	last atomic.Int64 // in Unix nanoseconds
}

// Handle is called by the SDK.
func (s *sayer) Handle(err error) {
	now, last := time.Now().UnixNano(), s.last.Load()
	if now-last > int64(sayEvery) && s.last.CompareAndSwap(last, now) {
		s.log.Warn("traces: spans are lost", "err", err)
	}
}
