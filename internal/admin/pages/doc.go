// Package pages is what a person sees in a browser: pages drawn on the server, whole without a script, from templates
// and files that are part of the binary. One small script replaces parts that are marked as live, as the server sends
// them.
//
// pages.go has the addresses, what is common to all pages, and the server-sent events, acts.go reads the forms and lets
// each act once, the others have what pages are made of (overview.go, letters.go, messages.go, preview.go, runs.go,
// pause.go, reconcile.go); runs.go writes down too what a person may not do. chart.go draws the small charts, words.go
// says how figures and times are written. What is shown and done comes from package view; a page decides nothing.
package pages
