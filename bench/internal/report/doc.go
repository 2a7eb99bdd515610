// Package report writes what was measured: results.json for machines, RESULTS.md and the curves for people, and says on
// what machine. It computes no figures.
package report
