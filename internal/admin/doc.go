// Package admin is what the daemon answers over HTTP: /healthz (is the process alive), /readyz (does it consume, and if
// not, what is it waiting for) and /metrics (Prometheus). It reads and never writes; it must not know the engine, whose
// state it is given as a function.
package admin
