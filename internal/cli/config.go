package cli

import (
	"context"
	"slices"

	"github.com/rollbackd/rollbackd/internal/config"
)

var configCommand = command{
	use:   "config",
	short: "Show the effective configuration, secrets masked",
	long: `Show every setting as it is in effect, secrets masked, and where it came from: default, environment or file.
With -o markdown: the table of all settings for the documentation, which needs no configuration.`,
	needs: needsNothing,
	forms: append(slices.Clip(inForms), outputMarkdown),
	flags: func(*flags) work {
		return func(_ context.Context, c *call) error {
			if c.out.chosen == outputMarkdown {
				return c.print(nil, func(p *page) { p.WriteString(config.Markdown()) })
			}
			cfg, err := c.loadConfig()
			if err != nil {
				return err
			}
			t := table{header: []string{"VARIABLE", "VALUE", "SOURCE"}}
			for _, s := range cfg.Settings() {
				source := string(s.Source)
				if s.File != "" {
					source += " " + s.File
				}
				t.add(s.Name, s.Value, source)
			}
			return c.render(cfg.Settings(), t)
		}
	},
}
