// Package program builds the real binary and runs it as a child process: what a test, the demo or a chaos run does to
// it (SIGTERM, SIGKILL, SIGSTOP) happens to the very thing that users run. A child never outlives the process that
// started it. Nothing of the product may live here, and the binary never links it.
package program
