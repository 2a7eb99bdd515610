//go:build man

package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/rollbackd/rollbackd/internal/cli/command"
)

// manCommands is the command that writes man pages, in the build that makes a release's: go build -tags man.
var manCommands = []command.Command{{
	Use:    "man DIR",
	Short:  "Write the man pages of all commands",
	Args:   cobra.ExactArgs(1),
	Needs:  command.NeedsNothing,
	Hidden: true,
	Forms:  command.NoForm,
	Flags: func(f *command.Flags) command.Work {
		return func(_ context.Context, c *command.Call) error {
			seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
			if err != nil {
				return command.Usagef("SOURCE_DATE_EPOCH must be the time that the pages show, in seconds: %w", err)
			}
			when := time.Unix(seconds, 0).UTC()
			root := f.Cobra.Root()
			root.DisableAutoGenTag = true
			header := &doc.GenManHeader{Section: "1", Source: c.Program, Date: &when}
			if err := doc.GenManTree(root, header, c.Args[0]); err != nil {
				return fmt.Errorf("write the man pages: %w", err)
			}
			return nil
		}
	},
}}
