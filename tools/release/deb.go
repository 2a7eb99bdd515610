package main

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the packager that is asked for by its name
	"github.com/goreleaser/nfpm/v2/files"
)

// writeTexts makes what the program says about itself, under the name it is installed as: completions and man pages. It
// returns a folder, which the caller removes.
func writeTexts(ctx context.Context, s source) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "release"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	program := filepath.Join(dir, "rollbackd")
	// The tag adds the command that writes man pages; its library is of no use to anybody else.
	if err := compile(ctx, s, runtime.GOARCH, program, "-tags", "man"); err != nil {
		return "", err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, err := exec.CommandContext(ctx, program, "completion", shell).Output()
		if err != nil {
			return "", fmt.Errorf("the completion for %s: %w", shell, err)
		}
		if err := os.WriteFile(filepath.Join(dir, shell), out, 0o644); err != nil {
			return "", err
		}
	}
	man := filepath.Join(dir, "man")
	if err := os.Mkdir(man, 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, program, "man", man)
	cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", s.time.Unix()))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the man pages: %w\n%s", err, out)
	}
	changelog, err := os.ReadFile(filepath.Join(s.root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	if err := zip(filepath.Join(dir, "changelog.gz"), changelog); err != nil {
		return "", err
	}
	pages, err := filepath.Glob(filepath.Join(man, "*.1"))
	if err != nil {
		return "", err
	}
	for _, page := range pages {
		body, err := os.ReadFile(page)
		if err != nil {
			return "", err
		}
		if err := errors.Join(zip(page+".gz", body), os.Remove(page)); err != nil {
			return "", err
		}
	}
	license, err := os.ReadFile(filepath.Join(s.root, "LICENSE"))
	if err != nil {
		return "", err
	}
	third, err := os.ReadFile(filepath.Join(s.root, noticesName))
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "copyright"), slices.Concat(license, []byte("\n"), third), 0o644)
}

// zip writes body without a name or a time in it.
func zip(path string, body []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	_, err = w.Write(body)
	return errors.Join(err, w.Close(), f.Close())
}

// writeDeb makes the Debian package of a binary.
func writeDeb(s source, arch, binary, texts, out string) (path string, err error) {
	deploy := func(parts ...string) string { return filepath.Join(append([]string{s.root, "deploy"}, parts...)...) }
	add := func(from, to string, mode os.FileMode) *files.Content {
		return &files.Content{Source: from, Destination: to, FileInfo: &files.ContentFileInfo{Mode: mode, MTime: s.time}}
	}
	// Passwords stand in it. postinst gives it to the account's group, which does not exist before.
	config := add(deploy("systemd", "rollbackd.env"), "/etc/rollbackd/rollbackd.env", 0o640)
	config.Type = files.TypeConfig
	contents := files.Contents{
		add(binary, "/usr/bin/rollbackd", 0o755),
		add(deploy("systemd", "rollbackd.service"), "/lib/systemd/system/rollbackd.service", 0o644),
		config,
		add(filepath.Join(texts, "bash"), "/usr/share/bash-completion/completions/rollbackd", 0o644),
		add(filepath.Join(texts, "zsh"), "/usr/share/zsh/vendor-completions/_rollbackd", 0o644),
		add(filepath.Join(texts, "fish"), "/usr/share/fish/vendor_completions.d/rollbackd.fish", 0o644),
		add(filepath.Join(texts, "copyright"), "/usr/share/doc/rollbackd/copyright", 0o644),
		add(filepath.Join(texts, "changelog.gz"), "/usr/share/doc/rollbackd/changelog.gz", 0o644),
	}
	pages, err := filepath.Glob(filepath.Join(texts, "man", "*.gz"))
	if err != nil {
		return "", err
	}
	for _, page := range pages {
		contents = append(contents, add(page, "/usr/share/man/man1/"+filepath.Base(page), 0o644))
	}
	for _, name := range []string{"mysql-1-migrate.sql", "mysql-2-daemon.sql", "rabbitmq-definitions.json",
		"redis-users.acl"} {
		contents = append(contents, add(deploy("accounts", name), "/usr/share/doc/rollbackd/accounts/"+name, 0o644))
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "rollbackd", Arch: arch, Platform: "linux", Version: s.version, Section: "net", Priority: "optional",
		Maintainer: "the rollbackd authors <rollbackd@localhost>", License: "MIT", MTime: s.time,
		Homepage: "https://github.com/rollbackd/rollbackd",
		Description: "gives stock back exactly once\nIt makes the effect of each RabbitMQ stock-rollback message happen " +
			"exactly once,\nin one MySQL transaction with a row that says so.",
		Overridables: nfpm.Overridables{
			Depends: []string{"adduser"}, Recommends: []string{"ca-certificates"}, Contents: contents,
			Scripts: nfpm.Scripts{PostInstall: deploy("deb", "postinst"), PreRemove: deploy("deb", "prerm"),
				PostRemove: deploy("deb", "postrm")},
		},
	})
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return "", err
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return "", err
	}
	path = filepath.Join(out, packager.ConventionalFileName(info))
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	return path, errors.Join(packager.Package(info, f), f.Close())
}

// writeSums writes SHA256SUMS, as `sha256sum -c` reads it.
func writeSums(out string, paths []string) error {
	var lines []string
	for _, path := range paths {
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(body), filepath.Base(path)))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[66:], b[66:]) })
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}
