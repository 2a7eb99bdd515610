//go:build man

package cli

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommands adds the command that writes man pages, in the build that makes a release's: go build -tags man.
func manCommands(a *app) []*cobra.Command { return []*cobra.Command{newManCmd(a)} }

func newManCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the man pages of all commands",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
			if err != nil {
				return usageErrorf("SOURCE_DATE_EPOCH must be the time that the pages show, in seconds: %w", err)
			}
			when := time.Unix(seconds, 0).UTC()
			root := cmd.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: a.name, Date: &when}, args[0]); err != nil {
				return fmt.Errorf("write the man pages: %w", err)
			}
			return nil
		},
	}
}
