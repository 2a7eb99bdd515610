package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes beside the binary what it consists of, as the binary itself says.
func writeSBOM(s source, arch, binary string, modules []module) (path string, err error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "", fmt.Errorf("read what %s consists of: %w", binary, err)
	}
	component := func(name, version string) cdx.Component {
		c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: name, Version: version,
			PackageURL: "pkg:golang/" + name + "@" + version}
		c.BOMRef = c.PackageURL
		if i := slices.IndexFunc(modules, func(m module) bool { return m.Path == name }); i >= 0 {
			var licenses cdx.Licenses
			for _, id := range modules[i].Licenses {
				licenses = append(licenses, cdx.LicenseChoice{License: &cdx.License{ID: id}})
			}
			c.Licenses = &licenses
		}
		return c
	}
	main := component(info.Main.Path, "v"+s.version)
	main.Type = cdx.ComponentTypeApplication
	main.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "MIT"}}}
	main.Properties = &[]cdx.Property{{Name: "build:GOOS", Value: "linux"}, {Name: "build:GOARCH", Value: arch}}
	var parts []cdx.Component
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		parts = append(parts, component(d.Path, d.Version))
	}
	parts = append(parts, component("std", info.GoVersion[len("go"):]))
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: s.time.Format(time.RFC3339), Component: &main}
	bom.Components = &parts
	path = binary + ".cdx.json"
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	err = cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return path, errors.Join(err, f.Close())
}
