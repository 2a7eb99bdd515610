// Package telemetry makes the OpenTelemetry providers of a process from the standard OTEL_ variables. What a span is
// and when it is made, and what is counted, may not be here: the engine says that.
package telemetry
