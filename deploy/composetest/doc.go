// Package composetest reads the files of deploy with the libraries of those who will read them: compose.yaml as Docker
// Compose does, the chart as Helm does, what it sends as Kubernetes, KEDA and the Prometheus operator do, Prometheus
// files as YAML. It is a module of its own so that rollbackd does not depend on
// these libraries. Nothing but tests belongs here.
package composetest
