package main

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Given a registry with an image for several platforms, when files name it with the digest of an older one, then pin
// writes the index's digest; an image without a digest stays as it is; and one that is not found leaves its file alone.
func TestPinWritesTheDigestsThatTheRegistryHas(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := server.Listener.Addr().String()
	index, err := random.Index(100, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host + "/library/server:4-management")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	want, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	old := "sha256:" + strings.Repeat("0", 64)
	write := func(text string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}

	path := write("a:\n  image: " + ref.String() + "@" + old + "\nb:\n  image: " + host + "/library/other:1\n")
	var said bytes.Buffer
	if err := pinFile(t.Context(), path, &said); err != nil {
		t.Fatal(err)
	}
	if got, wanted := read(path), "a:\n  image: "+ref.String()+"@"+want.String()+"\nb:\n  image: "+host+
		"/library/other:1\n"; got != wanted {
		t.Errorf("the file is\n%s\nwant\n%s", got, wanted)
	}
	if !strings.Contains(said.String(), want.String()) {
		t.Errorf("it says %q", said.String())
	}

	text := "FROM " + ref.String() + "@" + old + "\nFROM " + host + "/library/gone:2@" + old + "\n"
	path = write(text)
	if err := pinFile(t.Context(), path, io.Discard); err == nil || !strings.Contains(err.Error(), "gone:2") {
		t.Errorf("error %v, want the image that is not there", err)
	}
	if read(path) != text {
		t.Error("a file with an image that is not there was changed")
	}
}
