//go:build !unix

package server

import (
	"errors"
	"fmt"
)

// OpenFiles is how many file descriptors this process may have at once; here the system has no such limit.
func OpenFiles() (uint64, error) {
	return 0, fmt.Errorf("a limit of file descriptors: %w", errors.ErrUnsupported)
}
