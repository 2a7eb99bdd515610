// Command release makes what is published, in dist/: static binaries, what they consist of, packages for dpkg and rpm,
// an OCI image, checksums, and, where it is given a key, provenance and signatures. It publishes nothing, and must not
// be part of rollbackd's module, which would then depend on the libraries that do it.
package main
