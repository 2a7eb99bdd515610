// Package certs is what all clients of rollbackd share about TLS: PEM files that are read again before each connection
// ([Store]), the configuration of one handshake ([Handshake]), and what it means when one fails, in words that say
// whose certificate is wrong, how, and what to do ([Error]).
//
// What may live here: what is true of certificates, whatever protocol is spoken above them. What must not: how a URL
// or a DSN names the files, and connections. So the package imports nothing else of this module.
package certs
