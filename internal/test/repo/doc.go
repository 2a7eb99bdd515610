// Package repo holds the rules of this repository that no compiler checks, as tests: who may import whom and why not,
// that exported things say what they mean, that each header is declared once, that no file names a path of somebody's
// machine. It has no code besides, and nothing imports it.
package repo
