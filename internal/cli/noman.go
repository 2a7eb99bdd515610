//go:build !man

package cli

import "github.com/spf13/cobra"

// manCommands are the commands of the build that makes man pages: whoever runs the program needs none.
func manCommands(*app) []*cobra.Command { return nil }
