// Command bench measures rollbackd beside its rivals in one run, on servers of its own: see README.md. It is a module
// of its own, so that the rivals' libraries stay out of the product's.
package main
