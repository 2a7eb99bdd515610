// Package tracing makes the OpenTelemetry provider of a process from the standard OTEL_ variables. What a span is and
// when it is made may not be here: the engine says that.
package tracing
