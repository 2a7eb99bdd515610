// Package wire knows what a message says of itself: its identity, and the headers that rollbackd's own copies carry.
//
// The guarantee: a copy that [Copy] makes of a message has the identity of that message, for every ROLLBACKD_KEY_FROM
// and however often it is copied, retried, dead-lettered by us or by the broker, replayed or moved by hand. Two
// messages whose tag or key differ in any byte have different identities. No message is too odd to be filed: one that
// cannot be identified gets an identity made from what it is.
//
// Producers write what they like, so nothing here asserts a header's type, and nothing panics or fails for outside
// input.
//
// What may live here: reading and writing properties and headers. What must not: connections, rows, decisions.
package wire
