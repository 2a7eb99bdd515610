package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// Given two clones in folders of different names, when the second is built with nothing in its cache, then both
// binaries are the same, to the byte, and static; so is one for another processor, whose second build takes what the
// cache has.
func TestABuildElsewhereGivesTheSameBytes(t *testing.T) {
	dir := t.TempDir()
	var sources []source
	for _, name := range []string{"a", "another/much longer name"} {
		clone := filepath.Join(dir, name)
		top, err := filepath.Abs(root)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "git", "clone", "-q", "file://"+top, clone).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		s, err := look(t.Context(), clone, "v9.8.7")
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, s)
	}
	for _, arch := range []string{"arm64", "amd64"} {
		var sums []string
		for i, s := range sources {
			if arch == "amd64" && i == 1 {
				t.Setenv("GOCACHE", filepath.Join(dir, "cache")) // the other build is not looked at
			}
			path := filepath.Join(dir, fmt.Sprint(arch, i))
			if err := compile(t.Context(), s, arch, path); err != nil {
				t.Fatal(err)
			}
			body, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			sums = append(sums, fmt.Sprintf("%x", sha256.Sum256(body)))
			if strings.Contains(string(body), dir) {
				t.Errorf("the binary for %s names the folder that it was built in", arch)
			}
		}
		t.Logf("%s: %s", arch, sums[0])
		if sums[0] != sums[1] {
			t.Errorf("two builds for %s differ: %v", arch, sums)
		}
	}
	binary := filepath.Join(dir, "amd640")
	out, err := exec.CommandContext(t.Context(), binary, "version", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var said struct {
		Version, Revision string
		Modified          bool
	}
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatal(err)
	}
	if head, err := git(t.Context(), root, "rev-parse", "HEAD"); err != nil || said.Version != "v9.8.7" ||
		said.Revision != head || said.Modified {
		t.Errorf("the binary says %+v, want v9.8.7 of %s, not modified; %v", said, head, err)
	}
	if _, err := exec.LookPath("readelf"); err != nil {
		t.Log("readelf is not installed: nobody looked whether the binary is static")
	} else if out, err := exec.CommandContext(t.Context(), "readelf", "-lW", binary).Output(); err != nil ||
		strings.Contains(string(out), "INTERP") {
		t.Errorf("the binary is not static: %v\n%s", err, out)
	}

	modules, err := linked(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	holdsSBOM(t, sources[0], binary, modules)
}

// holdsSBOM fails the test unless the list of parts has each module that is linked, with a license.
func holdsSBOM(t *testing.T, s source, binary string, modules []module) {
	t.Helper()
	path, err := writeSBOM(s, "amd64", binary, modules)
	if err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BOMFormat  string
		Components []struct {
			Name     string
			PURL     string
			Licenses []struct{ License struct{ ID string } }
		}
	}
	if err := json.Unmarshal(body, &bom); err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, c := range bom.Components {
		have = append(have, c.Name)
		if len(c.Licenses) == 0 || c.Licenses[0].License.ID == "" || !strings.HasPrefix(c.PURL, "pkg:golang/") {
			t.Errorf("the part %+v has no license or address", c)
		}
	}
	for _, m := range modules {
		if !slices.Contains(have, m.Path) {
			t.Errorf("the list of parts lacks %s", m.Path)
		}
	}
	if len(have) != len(modules) || bom.BOMFormat != "CycloneDX" {
		t.Errorf("%s has %d parts, want the %d that are linked", bom.BOMFormat, len(have), len(modules))
	}
}

// Given what the program links now, then THIRD_PARTY_NOTICES has all of it, with its terms.
func TestTheNoticesAreThoseOfWhatIsLinked(t *testing.T) {
	modules, err := linked(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, noticesName))
	if err != nil {
		t.Fatal(err)
	}
	if want := notices(modules); string(got) != want {
		t.Errorf("%s is not what is linked any more: make notices", noticesName)
	}
}

func TestTheNewestVersionOfTheChangelogIsTheRelease(t *testing.T) {
	for text, want := range map[string]string{
		"# Changelog\n\n## [Unreleased]\n\n### Added\n\n- [x](y)\n":                     "0.0.0",
		"# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n\n## [0.1.0] - x\n": "0.2.0",
	} {
		if got := newest(text); got != want {
			t.Errorf("%q gives %s, want %s", text, got, want)
		}
	}
}
