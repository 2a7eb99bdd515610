// Package http is the handler whose effect is in a service that is reached over HTTP: it posts each message with a key
// that is the same for every attempt, and says in the engine's words what the answer means. docs/handlers.md is its
// manual.
//
// What may live here: a request, and the reading of its answer. What must not: when a call is made, how often and how
// many at a time (the engine), and where the settings come from (internal/config).
package http
