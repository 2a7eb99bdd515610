// Package server answers over HTTP, and says who is answered. /healthz (is the process alive), /readyz (does it
// consume, and if not, what is it waiting for) and /metrics (Prometheus) answer anybody; everything else stands behind
// a [Guard]. It is also how another process asks a daemon ([Ask]).
//
// The guard's files are guard.go (who asks, what he may do, by which proxy or from this machine), tokens.go (the
// tokens, and how many wrong ones are looked at) and session.go (the cookie that stands for one). ask.go is what the
// other process does.
//
// It must not know the engine, whose state it is given as a function.
package server
