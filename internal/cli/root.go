package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// commands is the table of the program's commands.
func commands() []command {
	return append([]command{
		runCommand, migrateCommand, doctorCommand, probeCommand, publishCommand, moveCommand,
		{use: "dlq", short: "List, show, export, replay and discard dead letters", of: []command{
			dlqListCommand, dlqShowCommand, dlqExportCommand, dlqReplayCommand, dlqDiscardCommand,
		}},
		{use: "log", short: "Ask the consumer log, or delete what is old in it", of: []command{
			logListCommand, logExplainCommand, logPruneCommand,
		}},
		reconcileCommand, actsCommand, pauseCommand, resumeCommand,
		{use: "handler", short: "Try the statements of ROLLBACKD_SQL_FILE", of: []command{handlerTryCommand}},
		configCommand, versionCommand,
	}, manCommands...)
}

// newRoot joins commands to the program.
func newRoot(a *app, commands ...command) *cobra.Command {
	root := a.new(command{
		use: a.name, short: "Give stock back exactly once", of: commands,
		long: `rollbackd consumes stock-rollback messages from RabbitMQ and gives the stock back in MySQL:
delivered at least once, in effect exactly once.

It is set up by environment variables alone: 'PROGRAM config' shows them, 'PROGRAM config -o markdown' explains them.`,
	})
	root.SilenceUsage, root.SilenceErrors = true, true // run prints an error once
	root.Version = a.build.Version
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetHelpCommand(newHelpCmd())
	// A group is runnable for cobra only so that it can refuse; its usage must not offer that.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not "+
		".HasAvailableSubCommands)}}", 1))
	root.PersistentPreRun = func(*cobra.Command, []string) { a.started = true }
	return root
}

// newHelpCmd replaces cobra's own, which answers an unknown topic with success.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
		// That of the root would have its errors taken for those of a command.
		PersistentPreRun: func(*cobra.Command, []string) {},
		RunE: func(cmd *cobra.Command, args []string) error {
			target, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return &usageError{err}
			case len(rest) > 0:
				return &usageError{unknownCommand(target, rest[0])}
			}
			target.InitDefaultHelpFlag()
			return target.Help()
		},
	}
}
