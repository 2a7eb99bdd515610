package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// Given two clones in folders of different names, when both are released, then all that is made is the same, to the
// byte: for one processor the second has nothing in its cache, for the other it takes what the cache has. The binary is
// static and names its version and commit, no folder; its list of parts has each module that is linked, with a license.
func TestAReleaseMadeElsewhereHasTheSameBytes(t *testing.T) {
	dir, top := t.TempDir(), must(filepath.Abs("../.."))(t)
	clones := []string{filepath.Join(dir, "a"), filepath.Join(dir, "another/much longer name")}
	var head string
	for _, clone := range clones {
		must(output("git", "clone", "-q", "--no-tags", "file://"+top, clone))(t)
		t.Chdir(clone)
		head = strings.TrimSpace(must(output("git", "rev-parse", "HEAD"))(t))
		if got := must(look(""))(t).version; !regexp.MustCompile(`^\d+\.\d+\.\d+-dev\.g` + head[:12] + "$").MatchString(got) {
			t.Errorf("without a tag the version is %s, want one of CHANGELOG.md, with %s", got, head[:12])
		}
		must(output("git", "tag", "v9.8.7"))(t)
	}
	for _, arch := range []string{"arm64", "amd64"} {
		var sums []string
		for i, clone := range clones {
			if arch == "amd64" && i == 1 {
				t.Setenv("GOCACHE", filepath.Join(dir, "cache")) // the other build is not looked at
			}
			t.Chdir(clone)
			out := filepath.Join(dir, fmt.Sprint(arch, i))
			if err := release(out, "", []string{arch}); err != nil {
				t.Fatal(err)
			}
			sums = append(sums, string(must(os.ReadFile(filepath.Join(out, "SHA256SUMS")))(t)))
		}
		t.Logf("%s:\n%s", arch, sums[0])
		if sums[0] != sums[1] || strings.Count(sums[0], "\n") != 4 {
			t.Errorf("two releases for %s are %q, want the same sums of binary, parts and two packages", arch, sums)
		}
	}
	binary := filepath.Join(dir, "amd640", "rollbackd_9.8.7_linux_amd64")
	if strings.Contains(string(must(os.ReadFile(binary))(t)), dir) {
		t.Error("the binary names the folder that it was built in")
	}
	var said struct {
		Version, Revision string
		Modified          bool
	}
	err := json.Unmarshal([]byte(must(output(binary, "version", "-o", "json"))(t)), &said)
	if err != nil || said.Version != "v9.8.7" || said.Revision != head || said.Modified {
		t.Errorf("the binary says %+v, want v9.8.7 of %s, not modified; %v", said, head, err)
	}
	if _, err := exec.LookPath("readelf"); err != nil {
		t.Log("readelf is not installed: nobody looked whether the binary is static")
	} else if strings.Contains(must(output("readelf", "-lW", binary))(t), "INTERP") {
		t.Error("the binary is not static")
	}

	var bom struct {
		Components []struct {
			Name     string
			PURL     string
			Licenses []struct{ License struct{ ID string } }
		}
	}
	if err := json.Unmarshal(must(os.ReadFile(binary+".cdx.json"))(t), &bom); err != nil {
		t.Fatal(err)
	}
	modules := must(linked())(t)
	var have []string
	for _, c := range bom.Components {
		have = append(have, c.Name)
		if len(c.Licenses) == 0 || c.Licenses[0].License.ID == "" || !strings.HasPrefix(c.PURL, "pkg:golang/") {
			t.Errorf("the part %+v has no license or address", c)
		}
	}
	for path := range modules {
		if !slices.Contains(have, path) {
			t.Errorf("the list of parts lacks %s", path)
		}
	}
	if len(have) != len(modules) {
		t.Errorf("the list has %d parts, want the %d that are linked", len(have), len(modules))
	}
}

// Given what the program links now, then THIRD_PARTY_NOTICES has all of it, with its terms.
func TestTheNoticesAreThoseOfWhatIsLinked(t *testing.T) {
	t.Chdir("../..")
	now := filepath.Join(t.TempDir(), "notices")
	if err := writeNotices(now); err != nil {
		t.Fatal(err)
	}
	if string(must(os.ReadFile(now))(t)) != string(must(os.ReadFile("THIRD_PARTY_NOTICES"))(t)) {
		t.Error("THIRD_PARTY_NOTICES is not what is linked any more: make release DO=notices")
	}
}
