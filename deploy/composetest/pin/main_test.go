package main

import (
	"bytes"
	"fmt"
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
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	index, err := random.Index(100, 1, 2)
	ok(err)
	ref, err := name.ParseReference(host + "/library/server:4-management")
	ok(err)
	ok(remote.WriteIndex(ref, index))
	want, err := index.Digest()
	ok(err)
	old := "sha256:" + strings.Repeat("0", 64)
	path := filepath.Join(t.TempDir(), "file")
	write := func(text string) { t.Helper(); ok(os.WriteFile(path, []byte(text), 0o600)) }
	reads := func(want string) {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil || string(text) != want {
			t.Errorf("the file is\n%s\nwant\n%s\n%v", text, want, err)
		}
	}

	both := "a:\n  image: " + ref.String() + "@%s\nb:\n  image: " + host + "/library/other:1\n"
	write(fmt.Sprintf(both, old))
	var said bytes.Buffer
	ok(pinFile(t.Context(), path, &said))
	reads(fmt.Sprintf(both, want))
	if !strings.Contains(said.String(), want.String()) {
		t.Errorf("it says %q", said.String())
	}

	text := "FROM " + ref.String() + "@" + old + "\nFROM " + host + "/library/gone:2@" + old + "\n"
	write(text)
	if err := pinFile(t.Context(), path, io.Discard); err == nil || !strings.Contains(err.Error(), "gone:2") {
		t.Errorf("error %v, want the image that is not there", err)
	}
	reads(text)
}
