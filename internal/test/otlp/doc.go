// Package otlp shows the daemon's spans and metrics as the OpenTelemetry collector's own receiver gets them. It is a
// module of its own, whose libraries stay out of rollbackd's, and holds tests only.
package otlp
