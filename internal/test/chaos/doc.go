// Package chaos tries to break the promise: two daemons, the real binary, work on one queue under load while a seeded
// schedule of faults hits them, their servers and the links between; then the faults stop, everything must come to rest
// by itself, and the oracle judges what is left. A part of the load goes the whole chain: an order service puts it into
// its outbox, relays send it, and another service applies the event of each effect. What hit nothing proves nothing, so
// each fault counts what it hit, and a kind of fault that never hit anything fails the run.
//
// The kinds are the rows of the tables in kinds.go, and of those of each cluster of databases in clusters.go: what
// begins one, what ends it, what it may cost. The phases are those in strike.go; in one of them people work beside it
// all: they replay, reconcile, prune, purge and move letters by hand.
//
// A soak is a run of hours with one fault a minute, in which memory, goroutines, handles and latency must not grow.
//
// It uses private servers only. Nothing of the product may live here, no testing.TB, and the binary never links it.
package chaos
