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
)

// manCommands is the command that writes man pages, in the build that makes a release's: go build -tags man.
var manCommands = []command{{
	use:    "man DIR",
	short:  "Write the man pages of all commands",
	args:   cobra.ExactArgs(1),
	needs:  needsNothing,
	hidden: true,
	forms:  noForm,
	flags: func(f *flags) work {
		return func(_ context.Context, c *call) error {
			seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
			if err != nil {
				return usageErrorf("SOURCE_DATE_EPOCH must be the time that the pages show, in seconds: %w", err)
			}
			when := time.Unix(seconds, 0).UTC()
			root := f.cmd.Root()
			root.DisableAutoGenTag = true
			header := &doc.GenManHeader{Section: "1", Source: c.name, Date: &when}
			if err := doc.GenManTree(root, header, c.args[0]); err != nil {
				return fmt.Errorf("write the man pages: %w", err)
			}
			return nil
		}
	},
}}
