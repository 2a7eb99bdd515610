package consumer

import "github.com/prometheus/client_golang/prometheus"

// connections counts the connections that were made to servers, by the server's name: each one that replaces another is
// one more. What an engine does not open itself it cannot count.
type connections struct {
	vec *prometheus.CounterVec
}

func newConnections(opened ...string) *connections {
	c := &connections{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rollbackd_connections_opened_total", Help: "Connections made, by the server's name.",
	}, []string{"name"})}
	for _, name := range opened {
		c.vec.WithLabelValues(name)
	}
	return c
}

// opened counts the connections to one server.
func (c *connections) opened(name string) func() { return c.vec.WithLabelValues(name).Inc }
