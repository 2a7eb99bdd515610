package telemetry

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given the standard variables, then spans and metrics are exported when an endpoint or an exporter is named, and never
// when they are switched off; what is not known is said.
func TestTheStandardVariablesSwitchTracesAndMetricsOnAndOff(t *testing.T) {
	const endpoint = "http://127.0.0.1:1"
	type env map[string]string
	for name, c := range map[string]struct {
		env                    env
		spans, metrics, failed bool
	}{
		"nothing is set":   {env{}, false, false, false},
		"an endpoint":      {env{"EXPORTER_OTLP_ENDPOINT": endpoint}, true, true, false},
		"one of traces":    {env{"EXPORTER_OTLP_TRACES_ENDPOINT": endpoint}, true, false, false},
		"one of metrics":   {env{"EXPORTER_OTLP_METRICS_ENDPOINT": endpoint}, false, true, false},
		"an exporter":      {env{"TRACES_EXPORTER": "otlp"}, true, false, false},
		"one of metrics's": {env{"METRICS_EXPORTER": "otlp"}, false, true, false},
		"no traces":        {env{"TRACES_EXPORTER": "none", "EXPORTER_OTLP_ENDPOINT": endpoint}, false, true, false},
		"no metrics":       {env{"METRICS_EXPORTER": "none", "EXPORTER_OTLP_ENDPOINT": endpoint}, true, false, false},
		"disabled":         {env{"SDK_DISABLED": "TRUE", "EXPORTER_OTLP_ENDPOINT": endpoint}, false, false, false},
		"grpc":             {env{"EXPORTER_OTLP_PROTOCOL": "grpc", "EXPORTER_OTLP_ENDPOINT": endpoint}, true, true, false},
		"not known":        {env{"TRACES_EXPORTER": "zipkin"}, false, false, true},
		"a protocol that is not known": {
			env{"EXPORTER_OTLP_METRICS_PROTOCOL": "http/json", "EXPORTER_OTLP_ENDPOINT": endpoint}, true, false, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, name := range []string{"SDK_DISABLED", "TRACES_EXPORTER", "METRICS_EXPORTER", "EXPORTER_OTLP_ENDPOINT",
				"EXPORTER_OTLP_TRACES_ENDPOINT", "EXPORTER_OTLP_METRICS_ENDPOINT", "EXPORTER_OTLP_PROTOCOL",
				"EXPORTER_OTLP_TRACES_PROTOCOL", "EXPORTER_OTLP_METRICS_PROTOCOL"} {
				t.Setenv("OTEL_"+name, c.env[name]) // empty is unset
			}
			p, err := Open(t.Context(), "v1", prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
			ends := 0
			for _, on := range []bool{c.spans, c.metrics} {
				if on && !c.failed {
					ends++
				}
			}
			assert.That(t, (p.Spans != nil) == c.spans && len(p.ends) == ends && (err != nil) == c.failed, "got %+v, %v", p, err)
			_ = p.Close() // nobody listens there
		})
	}
}

// Given a receiver that takes connections and says nothing, then the end of the process waits for it three seconds at
// most, and says so; and of one that is not there the log tells.
func TestAReceiverThatIsAwayHoldsNoEndUp(t *testing.T) {
	silent := require.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	for at, lost := range map[string]bool{silent.Addr().String(): false, "127.0.0.1:1": true} {
		t.Setenv("OTEL_METRICS_EXPORTER", "none") // whose last export is an error of Close wherever it fails
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+at)
		var out program.Log // to which the SDK may still write after the end of the provider
		p := require.Get(Open(t.Context(), "v1", prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&out, nil))))(t)
		_, span := p.Spans.Tracer("test").Start(t.Context(), "lost")
		span.End()
		began := time.Now()
		err := p.Close()
		assert.AtMost(t, time.Since(began), 3*stopTimeout, "%s: it took", at)
		if said := strings.Contains(out.String(), "spans or metrics are lost"); said != lost || (err == nil) != lost {
			t.Errorf("%s: Close = %v, and the log says %q", at, err, out.String())
		}
	}
}
