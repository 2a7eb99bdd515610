package telemetry

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

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// stopTimeout bounds the last export.
	stopTimeout = 3 * time.Second
	// sayEvery is how often it is logged at most that something is lost.
	sayEvery = time.Minute
)

// Provider exports spans and metrics. Close it.
type Provider struct {
	// Spans takes spans; nil: none are wanted.
	Spans trace.TracerProvider

	ends []func(context.Context) error
}

// Open makes a provider as the OTEL_ variables of the process say, of traces and of metrics for themselves: without an
// endpoint (OTEL_EXPORTER_OTLP_ENDPOINT, or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or OTEL_TRACES_EXPORTER=otlp, with
// OTEL_TRACES_EXPORTER=none, and with OTEL_SDK_DISABLED=true, no span is exported; METRICS in the place of TRACES
// likewise. Metrics are what gatherer has, once a minute, or as OTEL_METRIC_EXPORT_INTERVAL says. It connects to
// nothing yet; while the receiver is away both are dropped, and messages do not wait. The SDK reports its troubles
// through a handler of the process, which goes to log from here on.
func Open(ctx context.Context, version string, gatherer prometheus.Gatherer, log *slog.Logger) (*Provider, error) {
	p := &Provider{}
	spans, spansErr := wanted(os.Getenv, "TRACES")
	metrics, metricsErr := wanted(os.Getenv, "METRICS")
	if err := errors.Join(spansErr, metricsErr); err != nil || !spans && !metrics {
		return p, err
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "rollbackd"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return p, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(&sayer{log: log})
	if spans {
		exporter, err := spanExporter(ctx)
		if err != nil {
			return p, fmt.Errorf("traces: %w", err)
		}
		provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
		p.Spans, p.ends = provider, append(p.ends, provider.Shutdown)
	}
	if metrics {
		exporter, err := metricExporter(ctx)
		if err != nil {
			return p, errors.Join(fmt.Errorf("metrics: %w", err), p.Close())
		}
		reader := sdkmetric.NewPeriodicReader(exporter,
			sdkmetric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(gatherer))))
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(about))
		p.ends = append(p.ends, provider.Shutdown)
	}
	return p, nil
}

// Close exports what is left, within three seconds.
func (p *Provider) Close() error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	for _, end := range p.ends {
		if err := end(ctx); err != nil {
			errs = append(errs, fmt.Errorf("OpenTelemetry: the last spans or metrics were not exported: %w", err))
		}
	}
	p.ends = nil
	return errors.Join(errs...)
}

// wanted says whether a signal, TRACES or METRICS, is exported.
func wanted(getenv func(string) string, signal string) (bool, error) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := getenv("OTEL_" + signal + "_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "otlp":
		return true, nil
	case "":
		return getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != "", nil
	default:
		return false, fmt.Errorf("OTEL_%s_EXPORTER is %q: want otlp or none", signal, exporter)
	}
}

// overGRPC says which protocol a signal asks for; the rest of its settings the exporter reads by itself.
func overGRPC(getenv func(string) string, signal string) (bool, error) {
	name := cmp.Or(getenv("OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"))
	if name != "" && name != "http/protobuf" && name != "grpc" {
		return false, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q: want http/protobuf or grpc", name)
	}
	return name == "grpc", nil
}

func spanExporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	switch grpc, err := overGRPC(os.Getenv, "TRACES"); {
	case err != nil:
		return nil, err
	case grpc:
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

func metricExporter(ctx context.Context) (sdkmetric.Exporter, error) {
	switch grpc, err := overGRPC(os.Getenv, "METRICS"); {
	case err != nil:
		return nil, err
	case grpc:
		return otlpmetricgrpc.New(ctx)
	}
	return otlpmetrichttp.New(ctx)
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
		s.log.Warn("OpenTelemetry: spans or metrics are lost", "err", err)
	}
}
