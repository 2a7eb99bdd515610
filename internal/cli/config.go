package cli

import (
	"context"

	"github.com/rollbackd/rollbackd/internal/config"
)

// outputMarkdown is the form of the documentation's table.
const outputMarkdown = "markdown"

var configCommand = command{
	use:   "config",
	short: "Show the effective configuration, secrets masked",
	long: `Show every setting as it is in effect, secrets masked, and where it came from: default, environment or file.
With -o markdown: the table of all settings for the documentation, which needs no configuration.`,
	bare: true,
	flags: func(f *flags) work {
		out := f.output(outputMarkdown)
		return func(_ context.Context, c *call) error {
			if out.chosen == outputMarkdown {
				return out.print(c.stdout, nil, func(p *page) { p.WriteString(config.Markdown()) })
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
			return out.render(c.stdout, cfg.Settings(), t)
		}
	},
}
