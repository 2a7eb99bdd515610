// Command rollbackd is the daemon that gives stock back exactly once, and the tools around it. It must not decide
// anything: package internal/cli does.
package main

import "github.com/rollbackd/rollbackd/internal/cli"

func main() { cli.Main() }
