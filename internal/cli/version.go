package cli

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the linker for releases (-ldflags "-X …/internal/cli.version=v1.2.3"); nothing else writes it.
var version string

// unknown stands where neither the linker nor the go command noted anything.
const unknown = "unknown"

// build says what was built from what.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source, as version control names it
	Time     string `json:"time,omitempty"`     // of the revision, RFC 3339
	Modified *bool  `json:"modified"`           // built with uncommitted changes; nil when nothing tells
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// readBuild takes what the linker was told, else what the go command noted in the binary.
func readBuild() (b build) {
	b = build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
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

var versionCommand = command{
	use:   "version",
	short: "Show version, revision and platform",
	needs: needsNothing,
	flags: func(*flags) work {
		return func(_ context.Context, c *call) error {
			b := c.build
			modified := unknown
			if b.Modified != nil {
				modified = fmt.Sprint(*b.Modified)
			}
			t := table{header: []string{"VERSION", "REVISION", "TIME", "MODIFIED", "GO", "PLATFORM"}}
			t.add(b.Version, cmp.Or(b.Revision, unknown), cmp.Or(b.Time, unknown), modified, b.Go, b.Platform)
			return c.render(b, t)
		}
	},
}
