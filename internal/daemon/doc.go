// Package daemon joins everything that `rollbackd run` is made of: settings, the handler that they name, the engine and
// the HTTP pages. End-to-end tests, demo and bench run it in process. It must not hold what a library user of consumer
// or stock would miss without it.
package daemon
