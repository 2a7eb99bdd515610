// Package screen is how persons' words are read and strangers' words are shown, the same way by every door: moments in
// time, tables and texts that cannot act on a terminal. It must not know what it reads and writes.
package screen
