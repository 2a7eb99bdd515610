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
	"google.golang.org/protobuf/encoding/protojson"
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

// Given two clones in folders of different names, when both are released with one key, then all that is made is the
// same, to the byte, signatures too. OpenSSL and a reader of DSSE take the signatures; the provenance has the digest of
// each file, and the commit. The binary is static and names its version and commit, no folder; its list of parts has
// only modules that are linked, with licenses. Before a release the second clone has nothing in its cache, and one for
// all systems is made and looked at.
func TestAReleaseMadeElsewhereHasTheSameBytes(t *testing.T) {
	dir, top := t.TempDir(), must(filepath.Abs("../.."))(t)
	targets := []string{"linux/amd64", "windows/arm64"}
	all := os.Getenv("ROLLBACKD_TEST_RELEASE") != ""
	if all {
		targets = targets[:1] // which is then built from nothing
	}
	cache := strings.TrimSpace(must(output("go", "env", "GOCACHE"))(t))
	keyFile := filepath.Join(dir, "key.pem")
	must(output("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", keyFile))(t)
	dockerfile := string(must(os.ReadFile(filepath.Join(top, "deploy/Dockerfile")))(t))
	clones := []string{filepath.Join(dir, "a"), filepath.Join(dir, "another/much longer name")}
	var head, version string
	var sums []string
	for i, clone := range clones {
		must(output("git", "clone", "-q", "--no-tags", "file://"+top, clone))(t)
		t.Chdir(clone)
		head = strings.TrimSpace(must(output("git", "rev-parse", "HEAD"))(t))
		untagged, ok := must(look(""))(t).version, false
		if version, ok = strings.CutSuffix(untagged, "-dev.g"+head[:12]); !ok {
			t.Fatalf("without a tag the version is %s, want CHANGELOG.md's, with %s", untagged, head[:12])
		}
		must(output("git", "tag", "v9.8.7"))(t)
		if err := release(dir, "", targets, keyFile); err == nil || !strings.Contains(err.Error(), "v9.8.7") {
			t.Errorf("under a tag that CHANGELOG.md does not have: %v, want a refusal that names it", err)
		}
		must(output("git", "tag", "-d", "v9.8.7"))(t)
		must(output("git", "tag", "v"+version))(t)
		if all && i == 1 {
			t.Setenv("GOCACHE", filepath.Join(dir, "cache")) // the other build is not looked at
		}
		out := filepath.Join(dir, fmt.Sprint(i))
		if err := release(out, "", targets, keyFile); err != nil {
			t.Fatal(err)
		}
		names := must(filepath.Glob(filepath.Join(out, "*")))(t)
		sums = append(sums, must(output("sha256sum", names...))(t))
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
		must(0, release(filepath.Join(dir, "0"), "", everywhere, keyFile))(t)
	}
	t.Chdir(filepath.Join(dir, "0"))
	must(output("sha256sum", "-c", "SHA256SUMS"))(t)
	must(output("openssl", "dgst", "-sha256", "-verify", "rollbackd.pub", "-signature", "SHA256SUMS.sig",
		"SHA256SUMS"))(t)
	holdsProvenance(t, "rollbackd_"+version+".intoto.jsonl", head)
	holdsImage(t, dockerfile, version, head)
	must(0, os.WriteFile(filepath.Join(clones[0], "more"), nil, 0o644))(t)
	t.Chdir(clones[0])
	if err := release(dir, "", targets, keyFile); err == nil || !strings.Contains(err.Error(), "?? more") {
		t.Errorf("a tree with a file that no commit has was signed: %v, want a refusal that names the file", err)
	}
	binary := filepath.Join(dir, "0", "rollbackd_"+version+"_linux_amd64")
	if strings.Contains(string(must(os.ReadFile(binary))(t)), dir) {
		t.Error("the binary names the folder that it was built in")
	}
	var said struct {
		Version, Revision string
		Modified          bool
	}
	err := json.Unmarshal([]byte(must(output(binary, "version", "-o", "json"))(t)), &said)
	if err != nil || said.Version != "v"+version || said.Revision != head || said.Modified {
		t.Errorf("the binary says %+v, want v%s of %s, not modified; %v", said, version, head, err)
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
	modules := must(linked())(t) // of any system, so that some are not in this binary
	if len(bom.Components) < 30 {
		t.Errorf("the list has %d parts, want those that are linked", len(bom.Components))
	}
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
	if err := json.Unmarshal(must(os.ReadFile(path))(t), &envelope); err != nil {
		t.Fatal(err)
	}
	public := must(signerverifier.LoadKey(must(os.ReadFile("rollbackd.pub"))(t)))(t)
	verifier := must(signerverifier.NewECDSASignerVerifierFromSSLibKey(public))(t)
	reader := must(dsse.NewEnvelopeVerifier(nameless{verifier}))(t)
	if _, err := reader.Verify(t.Context(), &envelope); err != nil {
		t.Fatal(err)
	}
	var statement intoto.Statement
	how := new(provenance.Provenance)
	err := protojson.Unmarshal(must(envelope.DecodeB64Payload())(t), &statement)
	if err == nil {
		err = errors.Join(statement.Validate(), protojson.Unmarshal(must(protojson.Marshal(statement.Predicate))(t), how),
			how.Validate())
	}
	if err != nil || how.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] != commit {
		t.Errorf("the provenance is %v, %v, want one of commit %s", how, err, commit)
	}
	sums := string(must(os.ReadFile("SHA256SUMS"))(t))
	for _, s := range statement.Subject {
		if line := s.Digest["sha256"] + "  " + s.Name + "\n"; !strings.Contains(sums, line) {
			t.Errorf("the provenance says %q, which SHA256SUMS does not have", line)
		}
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
	must(output("tar", "-xf", prefix+"_oci.tar", "-C", dir))(t)
	top := must(layout.ImageIndexFromPath(dir))(t)
	if err := validate.Index(top); err != nil {
		t.Fatal(err)
	}
	index := must(top.ImageIndex(must(top.IndexManifest())(t).Manifests[0].Digest))(t)
	binaries := must(filepath.Glob(prefix + "_linux_*64"))(t)
	images := must(index.IndexManifest())(t).Manifests
	if len(images) != len(binaries) {
		t.Errorf("the image is for %v, want one for each of %v", images, binaries)
	}
	for _, m := range images {
		image := must(index.Image(m.Digest))(t)
		config := must(image.ConfigFile())(t)
		c, h := config.Config, config.Config.Healthcheck
		quoted := func(words []string) string {
			return strings.ReplaceAll(string(must(json.Marshal(words))(t)), ",", ", ")
		}
		for _, line := range []string{
			"USER " + c.User, "ENV " + c.Env[0], "ENTRYPOINT " + quoted(c.Entrypoint), "CMD " + quoted(c.Cmd),
			"EXPOSE " + strings.TrimSuffix(slices.Collect(maps.Keys(c.ExposedPorts))[0], "/tcp"),
			fmt.Sprintf("HEALTHCHECK --interval=%v --timeout=%v --start-period=%v --retries=%d CMD %s", h.Interval,
				h.Timeout, h.StartPeriod, h.Retries, quoted(h.Test[1:])),
		} {
			if !strings.Contains(dockerfile, "\n"+line+"\n") {
				t.Errorf("deploy/Dockerfile has not %q, as the image has", line)
			}
		}
		of := "org.opencontainers.image."
		if c.Labels[of+"version"] != version || c.Labels[of+"revision"] != commit {
			t.Errorf("the image's labels are %v, want version %s and commit %s", c.Labels, version, commit)
		}
		held := map[string][]byte{}
		files := tar.NewReader(mutate.Extract(image))
		for {
			f, err := files.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			held[must(f, err)(t).Name] = must(io.ReadAll(files))(t)
		}
		if !bytes.Equal(held["usr/bin/rollbackd"], must(os.ReadFile(prefix+"_linux_"+config.Architecture))(t)) {
			t.Errorf("the image for %s has another binary than the release", config.Architecture)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(held["etc/ssl/certs/ca-certificates.crt"]) {
			t.Error("the image knows no authorities")
		}
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
