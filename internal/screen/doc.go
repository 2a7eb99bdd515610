// Package screen writes what strangers have a say in for a person's screen: tables whose cells cannot act on a
// terminal. It knows nothing of what it writes.
package screen
