// Package stock gives reserved goods back exactly once, and takes them without ever selling one twice.
//
// Each (order, sku) has one reservation row that moves forward only: reserved, then released or deducted for good; or
// refused, when the rollback came before its deduction. [Rollback] adds a quantity to the stock only in the statement
// sequence that moves its reservation from reserved to released, so a second rollback, under whatever message key,
// finds nothing to move. [Reserve] takes goods only while enough are left. [Confirm] ends a reservation for good.
//
// All three work inside the caller's transaction and never end it: the caller commits when they return nil and must
// roll back when they return an error, because part of the work may have been written. The transaction should be READ
// COMMITTED; under REPEATABLE READ the results are the same, but gap locks make deadlocks likely.
//
// The package holds the tables' rules and their SQL for MySQL 8.0 and MariaDB 10.6 and later. It knows no broker, no
// message format and no consumer log, and imports nothing else of this module, so that a shop's service can use it
// without them. README.md documents the SQL for services in other languages.
package stock
