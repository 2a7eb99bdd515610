package daemon

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

// WithBuild says what the process was built from, for whoever looks at a fleet.
func WithBuild(version, revision string) Option {
	return func(o *options) { o.version, o.revision = version, revision }
}

// buildInfo is a metric that is always 1: its labels are what it says.
func buildInfo(version, revision string) prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rollbackd_build_info", Help: "1, with what the process was built from.",
	}, []string{"version", "revision", "goversion"})
	g.WithLabelValues(version, revision, runtime.Version()).Set(1)
	return g
}
