// Package shovel carries the messages of a queue that exists over to the main queue.
//
// The guarantee: a message leaves its queue only when RabbitMQ has confirmed that the main queue has a copy of it, with
// the same identity. Nothing else is written anywhere, so a run may be killed at any time, run again, run twice at once
// and beside the queue's old consumer: what is then in both queues, or twice in the main queue, are copies of one
// message, which the consumer log absorbs.
//
// What may live here: when to take, to publish, to ack and to wait. What must not: what a copy looks like (that is
// wire's), rows, and anything that settles a message in another way than by an ack after a confirmation.
package shovel
