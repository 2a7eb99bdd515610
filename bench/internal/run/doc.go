// Package run measures: it puts contestants on the ground, round after round in turn, and reads what they did from
// outside, in the same way for all. What a figure means and what its goal is, is not known here.
package run
