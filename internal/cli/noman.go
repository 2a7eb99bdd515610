//go:build !man

package cli

// manCommands are the commands of the build that makes man pages: whoever runs the program needs none.
var manCommands []command
