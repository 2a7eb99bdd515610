// Command consumer is rollbackd, under the name of the design.
package main

import "github.com/rollbackd/rollbackd/internal/cli"

func main() { cli.Main() }
