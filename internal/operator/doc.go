// Package operator is everything that a person does to a fleet, without saying how the person asks for it: pausing and
// resuming consuming, and runs over dead letters, which outlive the process and the browser that began them. Each act
// is one row under one id: who, why, on what, with what outcome. What is asked for twice under one name is done once.
//
// Besides runs there are tasks, which the caller gives functions for: the operator keeps them as it keeps runs.
//
// An act is committed before anything is told of it, and what a page, a command or a program shows of it comes from its
// row. A run is taken up by whichever daemon of the fleet is free, under a lease; when that one dies, another goes on.
// It moves no row and no message itself: that is package deadletter's, whose steps are compared and counted one by
// one, so two daemons that work on one run by mistake do nothing twice.
//
// What may live here: acts and runs, the once of requests, their tables' statements, the runner, and what of it is
// deleted after its time. What must not: HTTP, pages, sign-in and rights of persons (internal/admin), what becomes of a
// letter (deadletter), rows of the log (dedup), and whatever a delivery needs to end (consumer).
package operator
