package setup

import (
	"context"
	"slices"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/config"
)

var configCommand = command.Command{
	Use:   "config",
	Short: "Show the effective configuration, secrets masked",
	Long: `Show every setting as it is in effect, secrets masked, and where it came from: default, environment or file.
With -o markdown: the table of all settings for the documentation, which needs no configuration.`,
	Needs: command.NeedsNothing,
	Forms: append(slices.Clip(command.InForms), command.FormMarkdown),
	Flags: func(*command.Flags) command.Work {
		return func(_ context.Context, c *command.Call) error {
			if c.Output.Chosen == command.FormMarkdown {
				return c.Print(nil, func(p *command.Page) { p.WriteString(config.Markdown()) })
			}
			cfg, err := c.LoadConfig()
			if err != nil {
				return err
			}
			t := command.Table{Header: []string{"VARIABLE", "VALUE", "SOURCE"}}
			for _, s := range cfg.Settings() {
				source := string(s.Source)
				if s.File != "" {
					source += " " + s.File
				}
				t.Add(s.Name, s.Value, source)
			}
			return c.Render(cfg.Settings(), t)
		}
	},
}
