// Package mysqldb is how rollbackd talks to MySQL and MariaDB: [Open] makes a pool whose every connection has the
// settings without which the consumer log is not safe, [Repeated] spares the server the text of what comes again and
// again, [Classify] says whose fault an error is, and [Activity] and [CutStatement] say what a statement waited for
// that was cut off.
//
// What may live here: what is true of the servers and of their driver, whatever tables they hold. All error numbers
// that the product knows stand in faults.txt, or by name in numbers.go. What must not: tables, statements of the log or
// of a handler, and what an error means for a message. So the package imports nothing else of this module.
package mysqldb
