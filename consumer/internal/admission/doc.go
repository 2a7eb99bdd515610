// Package admission is what the workers of a process know together of what fails and what waits: whether a message may
// be tried now, beside whom, and what its trouble costs. It must not know rows, the broker or the handler, nor do I/O.
package admission
