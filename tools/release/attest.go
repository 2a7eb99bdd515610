package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/rs/zerolog"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

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

// home is where the repository and its module are.
const home = "github.com/rollbackd/rollbackd"

// key signs what is released. It is the releaser's, and no part of what is made.
type key struct{ *ecdsa.PrivateKey }

// readKey reads the file, and refuses to sign what no commit has: everybody else would make something else of it.
func readKey(path string, s source) *key {
	text := must.Get(os.ReadFile(path))
	block, _ := pem.Decode(text)
	if block == nil {
		must.OK(fmt.Errorf("%s is no PEM", path))
	}
	parsed := must.Get(x509.ParsePKCS8PrivateKey(block.Bytes))
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		must.OK(fmt.Errorf("%s is a %T, want an ECDSA key", path, parsed))
	}
	changed := must.Get(output("git", "status", "--porcelain"))
	if changed != "" {
		must.OK(fmt.Errorf("what is signed is commit %s, and these files differ from it:\n%s", s.commit, changed))
	}
	return &key{private}
}

// Sign gives the same signature of the same text each time, by RFC 6979, since no random numbers are given.
func (k *key) Sign(_ context.Context, text []byte) ([]byte, error) {
	sum := sha256.Sum256(text)
	return k.PrivateKey.Sign(nil, sum[:], crypto.SHA256)
}

func (k *key) KeyID() (string, error) { return dsse.SHA256KeyID(k.Public()) }

// writeSignature writes SHA256SUMS.sig, as `openssl dgst -sha256 -verify rollbackd.pub` wants it, and that file.
func (k *key) writeSignature(out string, sums []byte) {
	signature := must.Get(k.Sign(context.Background(), sums))
	public := must.Get(x509.MarshalPKIXPublicKey(k.Public()))
	must.OK(os.WriteFile(filepath.Join(out, "SHA256SUMS.sig"), signature, 0o644))
	must.OK(os.WriteFile(filepath.Join(out, "rollbackd.pub"),
		pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644))
}

// writeProvenance writes of which commit, by what and how all files were made: SLSA's provenance in an in-toto
// statement, signed.
func writeProvenance(s source, targets, made []string, path string, k *key) {
	statement := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: "https://slsa.dev/provenance/v1"}
	for _, path := range made {
		body := must.Get(os.ReadFile(path))
		statement.Subject = append(statement.Subject, &intoto.ResourceDescriptor{Name: filepath.Base(path),
			Digest: map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(body))}})
	}
	said := func(name, value string) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{name: structpb.NewStringValue(value)}}
	}
	how := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType:          "https://" + home + "/tools/release",
			ExternalParameters: said("for", strings.Join(targets, ",")),
			InternalParameters: said("go", runtime.Version()),
			ResolvedDependencies: []*intoto.ResourceDescriptor{{Uri: "git+https://" + home,
				Digest: map[string]string{"gitCommit": s.commit}}},
		},
		// Nobody but whoever has the key says so: level 1 of SLSA's.
		RunDetails: &provenance.RunDetails{Builder: &provenance.Builder{Id: "https://" + home + "/tools/release"}},
	}
	predicate := must.Get(protojson.Marshal(how))
	statement.Predicate = &structpb.Struct{}
	must.OK(errors.Join(how.Validate(), protojson.Unmarshal(predicate, statement.Predicate), statement.Validate()))
	text := must.Get(protojson.Marshal(statement))
	var payload bytes.Buffer
	must.OK(json.Compact(&payload, text)) // protojson puts in spaces at random
	signer := must.Get(dsse.NewEnvelopeSigner(k))
	envelope := must.Get(signer.SignPayload(context.Background(), "application/vnd.in-toto+json", payload.Bytes()))
	line := must.Get(json.Marshal(envelope))
	must.OK(os.WriteFile(path, append(line, '\n'), 0o644))
}
