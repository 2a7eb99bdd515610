// Package pages is what a person sees in a browser: pages drawn on the server, whole without a script, from templates
// and files that are part of the binary. One small script replaces parts that are marked as live, as the server sends
// them.
//
// pages.go has the addresses and what is common to all pages, live.go the server-sent events, acts.go reads the forms
// and lets each act once, one file each what a page is made of (overview.go, letters.go, messages.go, log.go, sign.go,
// preview.go, runs.go, pause.go, reconcile.go), refused.go writes down what a person may not do, chart.go draws the
// small charts, words.go says how figures and times are written. What is shown and done comes from package view; a page
// decides nothing.
package pages
