// Package legacyimport takes the table of the classic algorithm, trade_mq_consumer_log, over into the consumer log,
// while the consumer that writes it is still at work. It never changes that table.
//
// A pass ([Run]) reads it once, from its first row to its last, in pages through its primary key, and writes each page,
// with how far it came, in one transaction of the log's. What the other log calls success becomes success; what it left
// open becomes dead with an unknown effect, for a person to decide; an odd row has a [Kind] that says what became of
// it. A later pass brings what has changed since, and never touches a row that anybody of ours has moved.
//
// What belongs here: the shape of that table, what its rows mean, each kind in a person's words too, and the passes.
// What does not: the log's statements (package dedup), what a message must be to have its row's identity
// (internal/wire), and how a report is shown (internal/cli).
package legacyimport
