// Package browser opens the pages of a real daemon in a real Chromium: each page, the way of a person through them with
// the mouse, with the keyboard alone and without a script, what strangers have written, small and dark screens, and
// what axe-core finds. It is a module of its own, whose libraries stay out of rollbackd's, and holds tests only; `make
// test-browser` runs them.
package browser
