// Package view is what the pages, the API and the commands show and what can be asked for there: it asks servers within
// bounds, keeps in memory what takes longer to find out, and says how old that is. Nothing here reads a table from its
// beginning to its end while somebody waits.
//
// view.go has what is asked at once, background.go what is found out meanwhile: survey.go the groups of dead letters,
// stuck.go what does not move and why. ring.go is the last hour, hide.go what of a body may be seen, rows.go how rows
// and pauses are shown. acts.go has what a person or a program can ask for, each once, and answer.go what an error
// means to them. It must not write to the log, and must not know how a page, an answer or a table looks.
package view
