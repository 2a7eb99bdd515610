// Command rollbackd is the daemon that gives stock back exactly once, and the tools around it.
package main

import "github.com/rollbackd/rollbackd/internal/cli"

func main() { cli.Main() }
