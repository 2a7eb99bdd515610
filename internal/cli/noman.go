//go:build !man

package cli

import "github.com/rollbackd/rollbackd/internal/cli/command"

// manCommands are the commands of the build that makes man pages: whoever runs the program needs none.
var manCommands []command.Command
