package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/internal/config"
)

// outputMarkdown is the form of the documentation's table.
const outputMarkdown = "markdown"

func newConfigCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the effective configuration, secrets masked",
		Long: `Show every setting as it is in effect, secrets masked, and where it came from: default, environment or file.
With -o markdown: the table of all settings for the documentation, which needs no configuration.`,
		Args: cobra.NoArgs,
	}
	out := addOutputFlag(cmd, outputMarkdown)
	cmd.RunE = func(*cobra.Command, []string) error {
		if out.chosen == outputMarkdown {
			if _, err := io.WriteString(a.stdout, config.Markdown()); err != nil {
				return fmt.Errorf("write the output: %w", err)
			}
			return nil
		}
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		settings := cfg.Settings()
		t := table{header: []string{"VARIABLE", "VALUE", "SOURCE"}}
		for _, s := range settings {
			source := string(s.Source)
			if s.File != "" {
				source += " " + s.File
			}
			t.add(s.Name, s.Value, source)
		}
		return out.render(a.stdout, settings, t)
	}
	return cmd
}
