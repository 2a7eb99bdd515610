package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
	"github.com/rs/zerolog"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// module is somebody else's code that is in the binary.
type module struct {
	title    string
	licenses []string // by their SPDX names
	terms    string   // what must go with the binary
}

// linked are the modules whose packages the program links for any system, and Go's own library as std, by their paths.
func linked() map[string]module {
	var list strings.Builder
	for _, target := range everywhere {
		list.WriteString(goTool(target, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}"+
			"{{.Path}}\t{{.Path}} {{.Version}}\t{{.Dir}}{{end}}{{end}}", "./cmd/rollbackd"))
	}
	goroot := must.Get(output("go", "env", "GOROOT"))
	// Go's version is not named: it is that of whoever builds.
	list.WriteString("std\tGo's standard library\t" + goroot)
	classifier := must.Get(assets.DefaultClassifier())
	found := map[string]module{}
	for _, line := range slices.Compact(slices.Sorted(strings.Lines(list.String()))) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		found[fields[0]] = read(classifier, fields[1], fields[2])
	}
	return found
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// read finds the terms in a module's folder.
func read(classifier *classifier.Classifier, title, dir string) module {
	m := module{title: title}
	for _, e := range must.Get(os.ReadDir(dir)) {
		if e.IsDir() || !licenseFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		body := must.Get(os.ReadFile(filepath.Join(dir, e.Name())))
		body = bytes.TrimSpace(bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n")))
		m.terms += fmt.Sprintf("\n%s\n%s, %s\n\n%s\n", strings.Repeat("-", 80), title, e.Name(), body)
		for _, match := range classifier.Match(body).Matches {
			if match.MatchType == "License" && !slices.Contains(m.licenses, match.Name) {
				m.licenses = append(m.licenses, match.Name)
			}
		}
	}
	if len(m.licenses) == 0 {
		must.OK(fmt.Errorf("%s has no license that is known, in %s", title, dir))
	}
	return m
}

// writeParts writes what the binary consists of, as it says itself, and under which terms.
func writeParts(s source, binary, path string, modules map[string]module) {
	generator := must.Get(bin.NewGenerator(binary, bin.WithIncludeStdlib(true), bin.WithShortPURLS(true),
		bin.WithVersionOverride("v"+s.version), bin.WithLogger(zerolog.Nop())))
	bom := must.Get(generator.Generate())
	bom.Metadata.Timestamp = s.time.Format(time.RFC3339)
	bom.Metadata.Component.Licenses = licenses("MIT")
	for i, part := range *bom.Components {
		(*bom.Components)[i].Licenses = licenses(modules[part.Name].licenses...)
	}
	f := must.Get(os.Create(path))
	must.OK(errors.Join(cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom), f.Close()))
}

func licenses(ids ...string) *cdx.Licenses {
	var all cdx.Licenses
	for _, id := range ids {
		all = append(all, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	return &all
}

// writeNotices writes what THIRD_PARTY_NOTICES is, in the repository's root.
func writeNotices(path string) {
	modules := linked()
	head := "The binary of rollbackd contains the code below, under these terms. Made by `make notices`.\n\n"
	var terms string
	for _, path := range slices.Sorted(maps.Keys(modules)) {
		m := modules[path]
		head += fmt.Sprintf("%s: %s\n", m.title, strings.Join(m.licenses, ", "))
		terms += m.terms
	}
	must.OK(os.WriteFile(path, []byte(head+terms), 0o644))
}
