// Package prometheus shows the alerts, the recording rules and the dashboard of deploy/ to Debian's Prometheus and its
// promtool: they are parsed, their unit tests run, and each alert fires once for a real cause in a real daemon that it
// scrapes. It holds tests only. `make test-prometheus` runs all of them; without ROLLBACKD_TEST_PROMETHEUS those that
// need a running Prometheus are skipped, and without promtool those that need it.
package prometheus
