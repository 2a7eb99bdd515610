// Command pin writes into files what digest each image that they name has now: make pin. It asks the images'
// registries, needs no Docker, and changes a file only when each of its images was found.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/crane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var errs []error
	for _, path := range os.Args[1:] {
		errs = append(errs, pinFile(ctx, path, os.Stdout))
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintf(os.Stderr, "pin: %v\n", err)
		os.Exit(1)
	}
}

// pinned finds images with a digest, as a Dockerfile and a compose file name them. Whoever writes a new one gives it
// any digest: an image without one is not to be changed, such as one that is built here.
var pinned = regexp.MustCompile(`(\S+:[\w.-]+)@sha256:[0-9a-f]{64}`)

// pinFile renews the digests in one file and says each that changed.
func pinFile(ctx context.Context, path string, say io.Writer) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed := string(text)
	for _, match := range pinned.FindAllStringSubmatch(string(text), -1) {
		was, image := match[0], match[1]
		digest, err := crane.Digest(image, crane.WithContext(ctx)) // of the index, where there is one
		if err != nil {
			return fmt.Errorf("%s: the digest of %s: %w; the file is as it was", path, image, err)
		}
		if now := image + "@" + digest; now != was && strings.Contains(changed, was) {
			changed = strings.ReplaceAll(changed, was, now)
			fmt.Fprintf(say, "%s: %s\n", path, now)
		}
	}
	if changed == string(text) {
		return nil
	}
	return os.WriteFile(path, []byte(changed), 0o644)
}
