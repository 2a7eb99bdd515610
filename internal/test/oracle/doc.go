// Package oracle judges a run from outside: what was published and confirmed, what the consumer log says, what lies in
// the queues and what the stock holds must fit together, or messages were lost or took effect twice. Its rules are the
// promise itself:
//
//  1. per sku, amount + reserved + deducted = what there was at first, and nothing is negative;
//  2. by its row every confirmed message is exactly one of applied, dead-lettered, discarded, still queued;
//  3. no reservation was released twice (with [Audit], which counts every release, as they happen);
//  4. nothing is left in the main, retry and backstop queues, nothing is unacked, and the dead-letter queue holds
//     exactly one letter for each dead row (stale ones are counted apart);
//  5. no half batch: what a success row stands for is released, and what is released has a success row;
//  6. no attempt was spent on a dependency's failure;
//  7. where messages come by an outbox and tell of themselves by events: the stock is as each order's status says, the
//     outbox is empty, and each release had the effect of its event once.
//
// Tests, demo, bench and chaos runs use it. It asks the servers with statements of its own, so that a mistake in the
// consumer log's code cannot hide itself; of the product it only borrows how a message is named. No testing.TB and
// nothing that belongs to one kind of run may live here, and the binary never links it.
package oracle
