// Package daemon joins everything that `consumer run` is made of: settings, the handler that they name, the engine and
// the HTTP pages. End-to-end tests, demo and bench run it in process. What may not live here: anything a library user
// of consumer or stock would miss without it.
package daemon
