// Command consumer is rollbackd, under the name of the design. It must not do anything of its own.
package main

import "github.com/rollbackd/rollbackd/internal/cli"

func main() { cli.Main() }
