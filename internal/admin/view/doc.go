// Package view is what the pages and the API show: it asks servers within bounds, keeps in memory what takes longer to
// find out, and says how old that is. Nothing here reads a table from its beginning to its end while somebody waits.
//
// view.go and letters.go have what is asked at once, background.go what is found out meanwhile: survey.go the groups of
// dead letters, stuck.go what does not move and why. ring.go is the last hour, hide.go what of a body may be seen. It
// must not write, and must not know HTML or JSON.
package view
