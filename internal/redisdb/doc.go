// Package redisdb is how rollbackd connects to Redis: [Open] makes a client of a URL, whatever mode and certificates
// the URL asks for.
//
// What may live here: what is true of Redis and its client, whatever is kept there. What must not: locks and markers.
package redisdb
