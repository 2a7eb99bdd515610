package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/licenseclassifier/v2/assets"
)

// noticesName is the file in the repository's root.
const noticesName = "THIRD_PARTY_NOTICES"

// module is somebody else's code that is in the binary.
type module struct {
	Path, Version, Dir string
	Licenses           []string // by their SPDX names
	Texts              []text   // that must go with the binary
}

type text struct{ name, body string }

// linked are the modules whose packages the program links for Linux, and Go's own library, by path.
func linked(ctx context.Context, root string) ([]module, error) {
	found := map[string]module{}
	for _, arch := range []string{"amd64", "arm64"} {
		cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Module", "./cmd/rollbackd")
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list what is linked: %w\n%s", err, stderr.String())
		}
		for dec := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct {
				Module *struct {
					Path, Version, Dir string
					Main               bool
				}
			}
			err := dec.Decode(&p)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("list what is linked: %w", err)
			}
			if p.Module != nil && !p.Module.Main {
				found[p.Module.Path] = module{Path: p.Module.Path, Version: p.Module.Version, Dir: p.Module.Dir}
			}
		}
	}
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("find Go's own library: %w", err)
	}
	found["std"] = module{Path: "std", Version: strings.TrimPrefix(runtime.Version(), "go"),
		Dir: strings.TrimSpace(string(goroot))}
	classifier, err := assets.DefaultClassifier()
	if err != nil {
		return nil, err
	}
	var modules []module
	for _, path := range slices.Sorted(maps.Keys(found)) {
		m := found[path]
		if m.Texts, err = licenseTexts(m.Dir); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Path, err)
		}
		for _, t := range m.Texts {
			for _, match := range classifier.Match([]byte(t.body)).Matches {
				if match.MatchType == "License" && !slices.Contains(m.Licenses, match.Name) {
					m.Licenses = append(m.Licenses, match.Name)
				}
			}
		}
		if len(m.Licenses) == 0 {
			return nil, fmt.Errorf("%s %s has no license that is known, in %s", m.Path, m.Version, m.Dir)
		}
		modules = append(modules, m)
	}
	return modules, nil
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

func licenseTexts(dir string) ([]text, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var texts []text
	for _, e := range entries {
		if e.IsDir() || !licenseFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		body, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, text{e.Name(), strings.TrimSpace(strings.ReplaceAll(string(body), "\r\n", "\n"))})
	}
	return texts, nil
}

// notices is the text of THIRD_PARTY_NOTICES. Go's version is not named: it is that of whoever builds.
func notices(modules []module) string {
	var b strings.Builder
	b.WriteString("The binary of rollbackd contains the code below, under these terms. Made by `make notices`.\n\n")
	for _, m := range modules {
		fmt.Fprintf(&b, "%s: %s\n", m.title(), strings.Join(m.Licenses, ", "))
	}
	for _, m := range modules {
		for _, t := range m.Texts {
			fmt.Fprintf(&b, "\n%s\n%s, %s\n\n%s\n", strings.Repeat("-", 80), m.title(), t.name, t.body)
		}
	}
	return b.String()
}

func (m module) title() string {
	if m.Path == "std" {
		return "Go's standard library"
	}
	return m.Path + " " + m.Version
}
