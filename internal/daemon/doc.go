// Package daemon joins everything that `consumer run` is made of: settings, MySQL, Redis, the stock handler, the engine and
// the HTTP pages. It is the only package that knows both stock and consumer. End-to-end tests, demo and bench run it in
// process. What may not live here: anything a library user of consumer or stock would miss without it.
package daemon
