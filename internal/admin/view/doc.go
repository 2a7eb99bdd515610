// Package view is what the pages, the API and the commands show and what can be asked for there: it asks servers within
// bounds, keeps in memory what takes longer to find out, and says how old that is. Nothing here reads a table from its
// beginning to its end while somebody waits.
//
// view.go has what is asked at once and what of a body may be seen, background.go what is found out meanwhile: the
// groups of dead letters, what does not move and why. ring.go is the last hour, and the charts of all daemons. acts.go
// has what a person or a program can ask for, each once, and what an error means to them. It must not write to the log,
// and must not know how a page, an answer or a table looks.
package view
