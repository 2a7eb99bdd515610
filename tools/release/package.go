package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the packagers that are asked for by their names
	_ "github.com/goreleaser/nfpm/v2/rpm"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// writeTexts makes what the program says about itself, under the name it is installed as; gzip -n without times.
func writeTexts(s source, dir string) {
	program, man := filepath.Join(dir, "rollbackd"), filepath.Join(dir, "man")
	// The tag adds the command that writes man pages; its library is of no use to anybody else.
	compile(s, "linux/"+runtime.GOARCH, program, "-tags", "man")
	for name, command := range map[string][]string{
		"bash":         {program, "completion", "bash"},
		"zsh":          {program, "completion", "zsh"},
		"fish":         {program, "completion", "fish"},
		"changelog.gz": {"gzip", "-9nc", "CHANGELOG.md"},
	} {
		text := must.Get(output(command[0], command[1:]...))
		must.OK(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	must.OK(os.Mkdir(man, 0o755))
	must.Get(output("env", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", s.time.Unix()), program, "man", man))
	must.Get(output("gzip", "-9nr", man))
}

// writePackages makes of a binary what deploy/package/nfpm.yaml says, for dpkg and for rpm.
func writePackages(s source, arch, binary, texts, out string) (paths []string) {
	values := map[string]string{"ARCH": arch, "VERSION": s.version, "BINARY": binary, "TEXTS": texts}
	config := must.Get(nfpm.ParseFileWithEnvMapping(filepath.Join("deploy", "package", "nfpm.yaml"),
		func(name string) string { return values[name] }))
	for _, format := range []string{"deb", "rpm"} {
		info := must.Get(config.Get(format))
		info.MTime = s.time
		packager := must.Get(nfpm.Get(format))
		path := filepath.Join(out, packager.ConventionalFileName(info))
		f := must.Get(os.Create(path))
		must.OK(errors.Join(packager.Package(info, f), f.Close()))
		paths = append(paths, path)
	}
	return paths
}

// writeImage makes what deploy/Dockerfile makes, without a daemon: an image for each processor's binary under one
// index, as an archive of an OCI layout. Work is a folder for it.
func writeImage(s source, binaries map[string]string, work, path string) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range slices.Sorted(maps.Keys(binaries)) {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: imageOf(s, arch, binaries[arch]),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	dir := filepath.Join(work, "oci")
	l := must.Get(layout.Write(dir, empty.Index))
	name := map[string]string{"org.opencontainers.image.ref.name": s.version}
	must.OK(l.AppendIndex(index, layout.WithAnnotations(name)))
	must.Get(output("tar", "--create", "--file="+path, "--directory="+dir, "--sort=name", "--format=ustar", "--owner=0",
		"--group=0", "--numeric-owner", "--mode=u=rwX,go=rX", fmt.Sprintf("--mtime=@%d", s.time.Unix()),
		"oci-layout", "index.json", "blobs"))
}

func imageOf(s source, arch, binary string) v1.Image {
	files := filesOf(s, binary)
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }
	layer := must.Get(tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer)))
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image = must.Get(mutate.AppendLayers(image, layer))
	config := must.Get(image.ConfigFile())
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: s.time}
	// As deploy/Dockerfile says; a test compares them.
	config.Config = v1.Config{
		User: "65532:65532", Env: []string{"ROLLBACKD_HTTP_ADDR=0.0.0.0:8080"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}}, Entrypoint: []string{"/usr/bin/rollbackd"}, Cmd: []string{"run"},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/usr/bin/rollbackd", "probe"}, Interval: 10 * time.Second,
			Timeout: 5 * time.Second, StartPeriod: 30 * time.Second, Retries: 3},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "rollbackd",
			"org.opencontainers.image.version":  s.version,
			"org.opencontainers.image.revision": s.commit,
			"org.opencontainers.image.source":   "https://" + home,
			"org.opencontainers.image.licenses": "MIT",
		},
	}
	return must.Get(mutate.ConfigFile(image, config))
}

// filesOf is the archive of an image's only layer: the binary, its terms, and the authorities that amqps, rediss and
// webhooks are checked against.
func filesOf(s source, binary string) []byte {
	var authorities []byte
	for root := range bundle.Roots() {
		if root.Constraint == nil { // a file cannot say under which condition one is trusted
			authorities = append(authorities, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})...)
		}
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(name string, mode int64, body []byte) {
		must.OK(w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(body)), ModTime: s.time}))
		must.Get(w.Write(body))
	}
	add("etc/ssl/certs/ca-certificates.crt", 0o644, authorities)
	add("usr/bin/rollbackd", 0o755, must.Get(os.ReadFile(binary)))
	for _, name := range terms {
		add("usr/share/doc/rollbackd/"+name, 0o644, must.Get(os.ReadFile(name)))
	}
	must.OK(w.Close())
	return archive.Bytes()
}
