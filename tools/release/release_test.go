package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/signerverifier"
	gomodule "golang.org/x/mod/module"
	"golang.org/x/mod/zip"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Given two clones in folders of different names, when both are released with one key, then all that is made is the
// same, to the byte, signatures too. OpenSSL and a reader of DSSE take the signatures; the provenance has the digest of
// each file, and the commit. The binary is static and names its version and commit, no folder; its list of parts has
// only modules that are linked, with licenses. Before a release the second clone has nothing in its cache, and one for
// all systems is made and looked at.
func TestAReleaseMadeElsewhereHasTheSameBytes(t *testing.T) {
	dir, top := t.TempDir(), must.Get(filepath.Abs("../.."))
	targets := []string{"linux/amd64", "windows/arm64"}
	all := os.Getenv("ROLLBACKD_TEST_RELEASE") != ""
	if all {
		targets = targets[:1] // which is then built from nothing
	}
	cache := strings.TrimSpace(must.Get(output("go", "env", "GOCACHE")))
	keyFile := filepath.Join(dir, "key.pem")
	must.Get(output("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", keyFile))
	dockerfile := string(must.Get(os.ReadFile(filepath.Join(top, "deploy/Dockerfile"))))
	clones := []string{filepath.Join(dir, "a"), filepath.Join(dir, "another/much longer name")}
	var head, version string
	var sums []string
	for i, clone := range clones {
		must.Get(output("git", "clone", "-q", "--no-tags", "file://"+top, clone))
		t.Chdir(clone)
		head = strings.TrimSpace(must.Get(output("git", "rev-parse", "HEAD")))
		untagged, ok := look("").version, false
		if version, ok = strings.CutSuffix(untagged, "-dev.g"+head[:12]); !ok {
			t.Fatalf("without a tag the version is %s, want CHANGELOG.md's, with %s", untagged, head[:12])
		}
		must.Get(output("git", "tag", "v9.8.7"))
		err := must.Catch(func() { release(dir, "", targets, keyFile) })
		assert.That(t, err != nil && strings.Contains(err.Error(), "v9.8.7"),
			"under a tag that CHANGELOG.md does not have: %v, want a refusal that names it", err)
		must.Get(output("git", "tag", "-d", "v9.8.7"))
		must.Get(output("git", "tag", "v"+version))
		if all && i == 1 {
			t.Setenv("GOCACHE", filepath.Join(dir, "cache")) // the other build is not looked at
		}
		out := filepath.Join(dir, fmt.Sprint(i))
		release(out, "", targets, keyFile)
		names := must.Get(filepath.Glob(filepath.Join(out, "*")))
		sums = append(sums, must.Get(output("sha256sum", names...)))
	}
	t.Log(sums[0])
	// Two files of each target, two packages of each of Linux; image, terms, provenance, sums and their signature, key.
	files := 2*len(targets) + 2*strings.Count(fmt.Sprint(targets), "linux") + 7
	if strings.ReplaceAll(sums[0], dir+"/0/", "") != strings.ReplaceAll(sums[1], dir+"/1/", "") ||
		strings.Count(sums[0], "\n") != files {
		t.Errorf("two releases are %q, want %d files with the same sums", sums, files)
	}
	if all {
		t.Setenv("GOCACHE", cache)
		t.Chdir(clones[0])
		release(filepath.Join(dir, "0"), "", everywhere, keyFile)
	}
	t.Chdir(filepath.Join(dir, "0"))
	must.Get(output("sha256sum", "-c", "SHA256SUMS"))
	must.Get(output("openssl", "dgst", "-sha256", "-verify", "rollbackd.pub", "-signature", "SHA256SUMS.sig",
		"SHA256SUMS"))
	holdsProvenance(t, "rollbackd_"+version+".intoto.jsonl", head)
	holdsImage(t, dockerfile, version, head)
	must.OK(os.WriteFile(filepath.Join(clones[0], "more"), nil, 0o644))
	t.Chdir(clones[0])
	err := must.Catch(func() { release(dir, "", targets, keyFile) })
	assert.That(t, err != nil && strings.Contains(err.Error(), "?? more"),
		"a tree with a file that no commit has was signed: %v, want a refusal that names the file", err)
	binary := filepath.Join(dir, "0", "rollbackd_"+version+"_linux_amd64")
	assert.That(t, !strings.Contains(string(must.Get(os.ReadFile(binary))), dir), "the binary names its build's folder")
	var said struct {
		Version, Revision string
		Modified          bool
	}
	err = json.Unmarshal([]byte(must.Get(output(binary, "version", "-o", "json"))), &said)
	assert.That(t, err == nil && said.Version == "v"+version && said.Revision == head && !said.Modified,
		"the binary says %+v, want v%s of %s, not modified; %v", said, version, head, err)
	if _, err := exec.LookPath("readelf"); err != nil {
		t.Log("readelf is not installed: nobody looked whether the binary is static")
	} else if strings.Contains(must.Get(output("readelf", "-lW", binary)), "INTERP") {
		t.Error("the binary is not static")
	}

	var bom struct {
		Components []struct {
			Name     string
			PURL     string
			Licenses []struct{ License struct{ ID string } }
		}
	}
	must.OK(json.Unmarshal(must.Get(os.ReadFile(binary+".cdx.json")), &bom))
	modules := linked() // of any system, so that some are not in this binary
	assert.That(t, len(bom.Components) >= 30, "the list has %d parts, want those that are linked", len(bom.Components))
	for _, c := range bom.Components {
		if _, ok := modules[c.Name]; !ok || len(c.Licenses) == 0 || c.Licenses[0].License.ID == "" ||
			!strings.HasPrefix(c.PURL, "pkg:golang/") {
			t.Errorf("the part %+v has no license or address, or is not linked", c)
		}
	}
}

// holdsProvenance reads it as a verifier does, with the key beside it.
func holdsProvenance(t *testing.T, path, commit string) {
	t.Helper()
	var envelope dsse.Envelope
	must.OK(json.Unmarshal(must.Get(os.ReadFile(path)), &envelope))
	public := must.Get(signerverifier.LoadKey(must.Get(os.ReadFile("rollbackd.pub"))))
	verifier := must.Get(signerverifier.NewECDSASignerVerifierFromSSLibKey(public))
	reader := must.Get(dsse.NewEnvelopeVerifier(nameless{verifier}))
	must.Get(reader.Verify(t.Context(), &envelope))
	var statement intoto.Statement
	how := new(provenance.Provenance)
	err := protojson.Unmarshal(must.Get(envelope.DecodeB64Payload()), &statement)
	if err == nil {
		err = errors.Join(statement.Validate(), protojson.Unmarshal(must.Get(protojson.Marshal(statement.Predicate)), how),
			how.Validate())
	}
	assert.That(t, err == nil && how.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] == commit,
		"the provenance is %v, %v, want one of commit %s", how, err, commit)
	sums := string(must.Get(os.ReadFile("SHA256SUMS")))
	for _, s := range statement.Subject {
		line := s.Digest["sha256"] + "  " + s.Name + "\n"
		assert.That(t, strings.Contains(sums, line), "the provenance says %q, which SHA256SUMS does not have", line)
	}
	if want := strings.Count(sums, "\n") - 1; len(statement.Subject) != want { // but for the provenance itself
		t.Errorf("the provenance has %d files, want the %d of SHA256SUMS", len(statement.Subject), want)
	}
}

// nameless is a key that does not say what it is called: the library's two parts name keys differently.
type nameless struct {
	*signerverifier.ECDSASignerVerifier
}

func (nameless) KeyID() (string, error) { return "", nil }

// holdsImage unpacks it: the index names an image for each binary of Linux, which holds that very binary, and is run as
// deploy/Dockerfile says.
func holdsImage(t *testing.T, dockerfile, version, commit string) {
	t.Helper()
	dir, prefix := t.TempDir(), "rollbackd_"+version
	must.Get(output("tar", "-xf", prefix+"_oci.tar", "-C", dir))
	top := must.Get(layout.ImageIndexFromPath(dir))
	must.OK(validate.Index(top))
	index := must.Get(top.ImageIndex(must.Get(top.IndexManifest()).Manifests[0].Digest))
	binaries := must.Get(filepath.Glob(prefix + "_linux_*64"))
	images := must.Get(index.IndexManifest()).Manifests
	assert.That(t, len(images) == len(binaries), "the image is for %v, want one for each of %v", images, binaries)
	for _, m := range images {
		image := must.Get(index.Image(m.Digest))
		config := must.Get(image.ConfigFile())
		c, h := config.Config, config.Config.Healthcheck
		quoted := func(words []string) string {
			return strings.ReplaceAll(string(must.Get(json.Marshal(words))), ",", ", ")
		}
		for _, line := range []string{
			"USER " + c.User, "ENV " + c.Env[0], "ENTRYPOINT " + quoted(c.Entrypoint), "CMD " + quoted(c.Cmd),
			"EXPOSE " + strings.TrimSuffix(slices.Collect(maps.Keys(c.ExposedPorts))[0], "/tcp"),
			fmt.Sprintf("HEALTHCHECK --interval=%v --timeout=%v --start-period=%v --retries=%d CMD %s", h.Interval,
				h.Timeout, h.StartPeriod, h.Retries, quoted(h.Test[1:])),
		} {
			assert.That(t, strings.Contains(dockerfile, "\n"+line+"\n"), "deploy/Dockerfile has not %q, as the image has", line)
		}
		of := "org.opencontainers.image."
		assert.That(t, c.Labels[of+"version"] == version && c.Labels[of+"revision"] == commit,
			"the image's labels are %v, want version %s and commit %s", c.Labels, version, commit)
		held := map[string][]byte{}
		files := tar.NewReader(mutate.Extract(image))
		for {
			f, err := files.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			held[must.Get(f, err).Name] = must.Get(io.ReadAll(files))
		}
		assert.That(t, bytes.Equal(held["usr/bin/rollbackd"], must.Get(os.ReadFile(prefix+"_linux_"+config.Architecture))),
			"the image for %s has another binary than the release", config.Architecture)
		assert.That(t, x509.NewCertPool().AppendCertsFromPEM(held["etc/ssl/certs/ca-certificates.crt"]),
			"the image knows no authorities")
	}
}

// Given what the program links now, then THIRD_PARTY_NOTICES has all of it, with its terms.
func TestTheNoticesAreThoseOfWhatIsLinked(t *testing.T) {
	t.Chdir("../..")
	now := filepath.Join(t.TempDir(), "notices")
	writeNotices(now)
	assert.That(t, string(must.Get(os.ReadFile(now))) == string(must.Get(os.ReadFile("THIRD_PARTY_NOTICES"))),
		"THIRD_PARTY_NOTICES is not what is linked any more: make release DO=notices")
}

// Given a proxy that has this commit as the newest version of CHANGELOG.md, and modules of others as they are here,
// when somebody who has nothing of the repository installs the program by its address, and builds a program of their
// own that requires the library, then both go without replace, and the installed program says its version.
func TestWhoHasNothingOfTheRepositoryInstallsTheProgramAndRequiresTheLibrary(t *testing.T) {
	dir, top := t.TempDir(), must.Get(filepath.Abs("../.."))
	t.Chdir(top)
	newest := newestVersion.FindSubmatch(must.Get(os.ReadFile("CHANGELOG.md")))
	version := "v" + string(newest[1])
	proxy := filepath.Join(dir, "proxy", home, "@v")
	must.OK(os.MkdirAll(proxy, 0o755))
	archive := must.Get(os.Create(filepath.Join(proxy, version+".zip")))
	must.OK(zip.CreateFromVCS(archive, gomodule.Version{Path: home, Version: version}, top, "HEAD", ""))
	must.OK(archive.Close())
	must.OK(os.WriteFile(filepath.Join(proxy, version+".mod"), must.Get(os.ReadFile("go.mod")), 0o644))
	must.OK(os.WriteFile(filepath.Join(proxy, version+".info"), fmt.Appendf(nil, `{"Version":%q}`, version), 0o644))
	must.OK(os.WriteFile(filepath.Join(proxy, "list"), []byte(version+"\n"), 0o644))
	here := strings.TrimSpace(must.Get(output("go", "env", "GOMODCACHE")))
	shop := filepath.Join(dir, "shop")
	must.OK(os.MkdirAll(shop, 0o755))
	must.OK(os.WriteFile(filepath.Join(shop, "go.mod"),
		fmt.Appendf(nil, "module example.com/shop\n\ngo 1.26.0\n\nrequire %s %s\n", home, version), 0o644))
	must.OK(os.WriteFile(filepath.Join(shop, "main.go"),
		must.Get(os.ReadFile("deploy/examples/library/mails/main.go")), 0o644))
	install := []string{"install", home + "/cmd/rollbackd@" + version}
	build := []string{"build", "-o", filepath.Join(dir, "mails"), "."}
	for _, args := range [][]string{install, build} {
		cmd := exec.Command("go", args...)
		cmd.Dir = shop
		cmd.Env = append(os.Environ(), "GOPROXY=file://"+dir+"/proxy,file://"+here+"/cache/download", "GOSUMDB=off",
			"GOFLAGS=-mod=mod -modcacherw -trimpath", "GOMODCACHE="+filepath.Join(dir, "modules"),
			"GOBIN="+dir, "GOWORK=off", "CGO_ENABLED=0")
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, said)
		}
	}
	assert.Has(t, must.Get(output(filepath.Join(dir, "rollbackd"), "version")), version+" ", "the installed program says")
}
