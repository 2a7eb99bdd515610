// Command release makes what is published: static binaries, what they consist of, Debian packages and checksums, in
// dist/. It is a module of its own so that rollbackd does not depend on the libraries that do it. README of the
// repository's root: CONTRIBUTING.md, how to release.
package main
