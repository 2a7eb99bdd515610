package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	// maxFileBytes bounds what X_FILE reads, so that a wrong path cannot fill the memory.
	maxFileBytes = 64 << 10
	// fileTimeout bounds how long a file may take: a pipe into which nobody writes, a file system that is away.
	fileTimeout = 5 * time.Second
	// byteOrderMark is U+FEFF in UTF-8. A file in UTF-16 has control characters, which no secret may have.
	byteOrderMark = "\ufeff"
)

// readWithin reads a setting from a file, without the newline that editors leave at its end and the byte order mark
// that some write before its beginning: nobody sees either, and each would be a part of a user's name or a password. No
// error holds the name, which may be the secret itself.
func readWithin(path string, timeout time.Duration) (string, error) {
	type content struct {
		text string
		err  error
	}
	read, until := make(chan content, 1), time.Now().Add(timeout)
	go func() { // a pipe that nobody opens for writing holds whoever opens it for reading
		text, err := readFile(path, until)
		read <- content{text, err}
	}()
	c := content{err: os.ErrDeadlineExceeded}
	select {
	case c = <-read:
	case <-time.After(timeout):
		if w, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil { // which lets it go
			_ = w.Close()
		}
	}
	if errors.Is(c.err, os.ErrDeadlineExceeded) {
		return "", fmt.Errorf("it has not been read to its end within %v: is it a pipe into which nobody writes?", timeout)
	}
	if e, ok := errors.AsType[*fs.PathError](c.err); ok {
		return "", e.Err
	}
	return c.text, c.err
}

func readFile(path string, until time.Time) (string, error) {
	if path == "" {
		return "", errors.New("the name is empty")
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		return "", errors.New("it is a directory")
	case !info.Mode().IsRegular() && info.Mode()&fs.ModeNamedPipe == 0:
		return "", errors.New("it is neither a file nor a pipe")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	_ = f.SetReadDeadline(until)     // a regular file has none, and needs none
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(content) > maxFileBytes {
		err = fmt.Errorf("it has %d bytes or more, at most %d are allowed", max(info.Size(), maxFileBytes+1), maxFileBytes)
	}
	value := strings.TrimPrefix(string(content), byteOrderMark)
	return strings.TrimSuffix(strings.TrimSuffix(value, "\n"), "\r"), err
}
