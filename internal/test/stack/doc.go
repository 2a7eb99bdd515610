// Package stack runs real RabbitMQ, MySQL or MariaDB, and Redis servers for tests, the demo and the benchmark, and
// leaves nothing behind: every server listens on a free loopback port, keeps its data in a temporary folder, is stopped
// by its process id, and dies with the process that started it, even when that process is killed.
//
// Tests get a fresh world each: a database from [MySQL], a virtual host from [AMQP], a Redis from [Redis]. The servers
// below are shared by all tests of a process, or by a whole run of `make test`; a test that kills or freezes a server
// starts one of its own with [OwnRabbit], [OwnMySQL] or [OwnRedis], or puts a [TCPProxy] in between.
//
// The three variables ROLLBACKD_TEST_AMQP_URL, ROLLBACKD_TEST_MYSQL_DSN and ROLLBACKD_TEST_REDIS_URL name servers to
// use instead.
//
// Nothing of the product may live here, and the binary never links this package. It speaks AMQP with the client library
// itself, because the tests of internal/rabbit use it and must not be judged by the code they test.
package stack
