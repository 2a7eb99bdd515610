//go:build unix

package server

import "syscall"

// OpenFiles is how many file descriptors this process may have at once.
func OpenFiles() (uint64, error) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	return uint64(limit.Cur), err // signed on some systems
}
