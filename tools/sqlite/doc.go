// Package sqlite tries a handler on SQLite, with package consumertest and no servers, as a user's own test may. It is a
// module of its own, whose libraries stay out of rollbackd's, and must not hold anything but tests.
package sqlite
