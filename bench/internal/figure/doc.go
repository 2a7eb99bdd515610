// Package figure says what is measured and what it shall come to: the contestants, the order in which they take turns,
// the figures with their goals, and how a figure is made of rounds. It runs nothing itself.
package figure
