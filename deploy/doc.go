// Package deploy holds no code: its files install and run rollbackd, and its tests keep them true to the program.
//
// What belongs here: compose, container image, Helm chart, systemd and Prometheus files, and tests that compare names,
// times and metrics in them with what the program knows. Tests that need libraries to read those formats live in the
// module composetest below.
package deploy
