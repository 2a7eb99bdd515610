// Command release makes what is published, in dist/: static binaries, what they consist of, packages for dpkg and rpm,
// an OCI image, checksums, and, where it is given a key, provenance and signatures. It publishes nothing, and must not
// be part of rollbackd's module, which would then depend on the libraries that do it.
package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	out := flag.String("out", "dist", "where it goes, seen from the repository's root; older files are replaced")
	version := flag.String("version", "", "as 0.1.0; by default that of the tag, or of CHANGELOG.md with a suffix")
	targets := flag.String("for", strings.Join(everywhere, ","), "systems and processors; packages and image are Linux's")
	key := flag.String("key", "", "a file with an ECDSA key as PEM, by which there are provenance and signatures")
	onlyNotices := flag.Bool("notices", false, "only write THIRD_PARTY_NOTICES")
	flag.Parse()
	err := must.Catch(func() {
		must.OK(os.Chdir(filepath.Join("..", "..")))
		if *onlyNotices {
			writeNotices("THIRD_PARTY_NOTICES")
		} else {
			release(*out, *version, strings.Split(*targets, ","), *key)
		}
	})
	if err != nil {
		log.Fatal(err)
	}
}

// everywhere is what a release is made for.
var everywhere = []string{
	"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64",
}

// release makes all that is published of the repository that it is called in, and signs it, where it is given a key.
func release(out, version string, targets []string, keyFile string) {
	s := look(version)
	var k *key
	if keyFile != "" {
		k = readKey(keyFile, s)
	}
	modules := linked()
	texts := must.Get(os.MkdirTemp("", "release"))
	defer func() { must.OK(os.RemoveAll(texts)) }()
	must.OK(os.MkdirAll(out, 0o755))
	writeTexts(s, texts)
	var made []string
	ofLinux := map[string]string{} // processor: binary
	for _, target := range targets {
		name := fmt.Sprintf("rollbackd_%s_%s", s.version, strings.ReplaceAll(target, "/", "_"))
		if strings.HasPrefix(target, "windows/") {
			name += ".exe"
		}
		binary := filepath.Join(out, name)
		parts := binary + ".cdx.json"
		compile(s, target, binary)
		writeParts(s, binary, parts, modules)
		made = append(made, binary, parts)
		if arch, ok := strings.CutPrefix(target, "linux/"); ok {
			ofLinux[arch], made = binary, append(made, writePackages(s, arch, binary, texts, out)...)
		}
	}
	image := filepath.Join(out, fmt.Sprintf("rollbackd_%s_oci.tar", s.version))
	writeImage(s, ofLinux, texts, image)
	made = append(made, image)
	for _, name := range terms { // what goes with a binary that is in no package
		path := filepath.Join(out, name)
		must.Get(output("install", "-m", "0644", name, path))
		made = append(made, path)
	}
	if k == nil {
		writeSums(out, made)
		return
	}
	provenance := filepath.Join(out, fmt.Sprintf("rollbackd_%s.intoto.jsonl", s.version))
	writeProvenance(s, targets, made, provenance, k)
	k.writeSignature(out, writeSums(out, append(made, provenance)))
}

var terms = []string{"LICENSE", "THIRD_PARTY_NOTICES"}

// source is what is built.
type source struct {
	version string    // without v
	commit  string    // as git names it, in full
	time    time.Time // the commit's: it stands in all that is made, so that making it again gives the same bytes
}

var newestVersion = regexp.MustCompile(`(?m)^## \[(\d.*?)\]`)

func look(version string) source {
	commit := must.Get(output("git", "log", "-1", "--format=%ct %H"))
	var seconds int64
	var revision string
	must.Get(fmt.Sscan(commit, &seconds, &revision))
	changelog := must.Get(os.ReadFile("CHANGELOG.md"))
	newest := newestVersion.FindSubmatch(changelog)
	if newest == nil {
		must.OK(fmt.Errorf("CHANGELOG.md has no version"))
	}
	// Without a tag it is not the release: dpkg and semantic versions sort it before that.
	unreleased := fmt.Sprintf("%s-dev.g%.12s", newest[1], revision)
	tag, _ := output("git", "describe", "--tags", "--exact-match", "--match", "v[0-9]*") // fails where there is none
	if tag = strings.TrimSpace(tag); tag != "" && tag != "v"+string(newest[1]) {
		must.OK(fmt.Errorf("the tag is %s, and CHANGELOG.md's newest version is %s: cut it first", tag, newest[1]))
	}
	version = strings.TrimPrefix(cmp.Or(version, tag, unreleased), "v")
	return source{version, revision, time.Unix(seconds, 0).UTC()}
}

func output(name string, args ...string) (string, error) {
	var stderr strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd.Args, err, stderr.String())
	}
	return string(out), nil
}

// goTool runs go for a system and its processor, whatever this machine's settings for them are.
func goTool(target string, args ...string) string {
	system, arch, _ := strings.Cut(target, "/")
	return must.Get(output("env", append([]string{"CGO_ENABLED=0", "GOOS=" + system, "GOARCH=" + arch, "GOFLAGS=",
		"GOAMD64=", "GOARM64=", "go"}, args...)...))
}

// compile makes the static binary. Nothing of this machine is in it: no path, no C library, no linker's build id.
func compile(s source, target, path string, more ...string) {
	args := append([]string{"build", "-trimpath", "-buildvcs=true",
		"-ldflags", "-s -w -buildid= -X github.com/rollbackd/rollbackd/internal/cli.version=v" + s.version}, more...)
	goTool(target, append(args, "-o", path, "./cmd/rollbackd")...)
}

// writeSums writes SHA256SUMS, as `sha256sum -c` reads it, and returns what it wrote.
func writeSums(out string, paths []string) []byte {
	var sums bytes.Buffer
	for _, path := range slices.Sorted(slices.Values(paths)) {
		body := must.Get(os.ReadFile(path))
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(body), filepath.Base(path))
	}
	must.OK(os.WriteFile(filepath.Join(out, "SHA256SUMS"), sums.Bytes(), 0o644))
	return sums.Bytes()
}
