package cli

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/rollbackd/rollbackd/internal/cli/command"
)

// version is set by the linker for releases (-ldflags "-X …/internal/cli.version=v1.2.3"); nothing else writes it.
var version string

// unknown stands where neither the linker nor the go command noted anything.
const unknown = "unknown"

// readBuild takes what the linker was told, else what the go command noted in the binary.
func readBuild() (b command.Build) {
	b = command.Build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	defer func() { b.Version = cmp.Or(b.Version, unknown) }()
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.Version == "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = new(s.Value == "true")
		}
	}
	return b
}

var versionCommand = command.Command{
	Use:   "version",
	Short: "Show version, revision and platform",
	Needs: command.NeedsNothing,
	Flags: func(*command.Flags) command.Work {
		return func(_ context.Context, c *command.Call) error {
			b := c.Build
			modified := unknown
			if b.Modified != nil {
				modified = fmt.Sprint(*b.Modified)
			}
			t := command.Table{Header: []string{"VERSION", "REVISION", "TIME", "MODIFIED", "GO", "PLATFORM"}}
			t.Add(b.Version, cmp.Or(b.Revision, unknown), cmp.Or(b.Time, unknown), modified, b.Go, b.Platform)
			return c.Render(b, t)
		}
	},
}
