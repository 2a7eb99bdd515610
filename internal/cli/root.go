package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// commands lists the program's commands. Each has a constructor newXCmd(a *app) in a file of its own.
func commands(a *app) []*cobra.Command {
	return append([]*cobra.Command{
		newRunCmd(a),
		newMigrateCmd(a),
		newDoctorCmd(a),
		newProbeCmd(a),
		newPublishCmd(a),
		newMoveCmd(a),
		newDLQCmd(a),
		newLogCmd(a),
		newReconcileCmd(a),
		newActsCmd(a),
		newPauseCmd(a),
		newResumeCmd(a),
		newHandlerCmd(a),
		newConfigCmd(a),
		newVersionCmd(a),
	}, manCommands(a)...)
}

// newRootCmd joins commands to the program.
func newRootCmd(a *app, commands ...*cobra.Command) *cobra.Command {
	root := newGroupCmd(a.name, "Give stock back exactly once", commands...)
	root.Long = `rollbackd consumes stock-rollback messages from RabbitMQ and gives the stock back in MySQL:
delivered at least once, in effect exactly once.

It is set up by environment variables alone: '` + a.name + ` config' shows them, '` + a.name + ` config -o markdown' ` +
		`explains them.`
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
	noteStart(a, root)
	return root
}

// newHelpCmd replaces cobra's own, which answers an unknown topic with success.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
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

// noteStart marks the moment when a command's own code begins, in cmd and all below it.
func noteStart(a *app, cmd *cobra.Command) {
	if begin := cmd.RunE; begin != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.started = true
			return begin(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		noteStart(a, sub)
	}
}
