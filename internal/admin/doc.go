// Package admin is what the daemon answers over HTTP: /healthz (is the process alive), /readyz (does it consume, and if
// not, what is it waiting for) and /metrics (Prometheus), and how another process asks it ([Ask]). It reads and never
// writes; it must not know the engine, whose state it is given as a function.
package admin
