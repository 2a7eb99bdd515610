package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Error is a TLS connection that did not come about. Nothing of it is about a message.
type Error struct {
	Server string // which, for example "Redis at cache:6379"; empty: whoever connects says it
	What   string // is wrong, and with whose certificate
	Do     string // about it; empty if there is nothing to say
	Err    error  // the library's own words; nil if there were none
}

// Error has all of it.
func (e *Error) Error() string {
	text := "TLS: " + e.What
	if e.Server != "" {
		text = e.Server + ": " + text
	}
	if e.Err != nil {
		text += " (" + e.Err.Error() + ")"
	}
	if e.Do != "" {
		text += ": " + e.Do
	}
	return text
}

// Unwrap is the library's error.
func (e *Error) Unwrap() error { return e.Err }

// Alerts with which a server refuses a client, by their numbers in RFC 8446, section 6.
const (
	alertRevoked          tls.AlertError = 44
	alertExpired          tls.AlertError = 45
	alertUnknownCA        tls.AlertError = 48
	alertProtocolVersion  tls.AlertError = 70
	alertUnrecognizedName tls.AlertError = 112
)

// Explain turns the errors of a handshake, and of what came instead of the server's first byte, into an [Error]. Of
// several the first one counts that says something; what has nothing to do with certificates comes back as it is.
func (h *Handshake) Explain(errs ...error) error {
	for _, err := range errs {
		e, known := errors.AsType[*Error](err)
		if !known {
			if e = h.explain(err); e == nil {
				continue
			}
			e.Err, e.Server = err, h.peer.Server
			h.failed.Store(e)
		}
		return fmt.Errorf("%w", e) // Redis' client unwraps what comes while it sets a connection up
	}
	return errors.Join(errs...)
}

func (h *Handshake) explain(err error) *Error {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return h.ofServer(err)
	}
	// An alert that the other side has sent: crypto/tls keeps its type to itself, but not what the type prints.
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" && op.Err != nil {
		return h.ofClient(op.Err.Error(), false)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return &Error{What: "what answers there does not speak TLS",
			Do: "give the port on which the server does, or switch TLS on at the server"}
	}
	if h.done.Load() && h.asked.Load() && HungUp(err) {
		return h.ofClient("", true)
	}
	return nil
}

// ofServer is what we do not like about the server's certificate.
func (h *Handshake) ofServer(err error) *Error {
	if wrong, ok := errors.AsType[x509.HostnameError](err); ok {
		return &Error{
			What: fmt.Sprintf("the server's certificate is not for %q but for %s", wrong.Host, names(wrong.Certificate)),
			Do: "connect under one of its names, or say in " + h.peer.Setting + "_SERVER_NAME which to expect, which is " +
				h.given(h.peer.ServerName),
		}
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return &Error{
			What: "the server's certificate is signed by nobody who is trusted here",
			Do: "name the PEM file of the CA that has signed it in " + h.peer.Setting + "_CA_FILE, which is " +
				h.given(h.peer.CA),
		}
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired &&
		invalid.Cert != nil {
		whose := "the server's certificate"
		if invalid.Cert.IsCA {
			whose = "the certificate of a CA of the server's"
		}
		if e := outOfDate(whose, invalid.Cert, "set this host's clock, or let the server use another one till then",
			"renew it at the server; nothing is to be changed here, unless this host's clock is wrong"); e != nil {
			return e
		}
	}
	return &Error{What: "the server's certificate is refused", Do: "give the server another one"}
}

// outOfDate is what is wrong with a certificate by our own clock, and what to do about it; nil if nothing is.
func outOfDate(whose string, c *x509.Certificate, early, late string) *Error {
	switch now := time.Now(); {
	case now.Before(c.NotBefore):
		return &Error{What: whose + ", " + subject(c) + ", is not valid before " + day(c.NotBefore), Do: early}
	case now.After(c.NotAfter):
		return &Error{What: whose + ", " + subject(c) + ", has expired on " + day(c.NotAfter), Do: late}
	}
	return nil
}

// ofClient is what the server does not like about ours: it sent an alert, or hung up without a word between the
// handshake and its first byte.
func (h *Handshake) ofClient(alert string, hungUp bool) *Error {
	is := func(one tls.AlertError) bool { return alert == one.Error() }
	own, log := h.peer.Setting+"_CERT_FILE", "the server's log says why"
	wants, refuses := "wants a client certificate", "refuses our client certificate, "
	if hungUp {
		wants, log = "hung up behind the handshake, in which it asked for a client certificate", "its log says why"
		refuses = "hung up behind the handshake, without a word about our client certificate, "
	}
	refuses = "the server " + refuses + subject(h.client)
	renew := "renew " + own + " and _KEY_FILE (they are read again without a restart)"
	switch {
	case is(alertProtocolVersion):
		return &Error{What: "the server speaks no version of TLS that is safe", Do: "switch on TLS 1.2 or 1.3 at the server"}
	case is(alertUnrecognizedName):
		return &Error{What: "the server does not know the name under which it is called, " + h.Config.ServerName,
			Do: "see " + h.peer.Setting + "_SERVER_NAME, which is " + h.given(h.peer.ServerName)}
	case !h.asked.Load():
		return &Error{What: "the server ends the handshake", Do: "its log says why"}
	case h.client == nil:
		return &Error{What: "the server " + wants + ", and we have none",
			Do: "name one, and its key, in " + own + " and _KEY_FILE"}
	}
	old := outOfDate("our client certificate", h.client, "use another one till then, or set this host's clock", renew)
	switch {
	case old != nil:
		return old
	case is(alertExpired):
		return &Error{What: refuses + ": it has expired by the server's clock", Do: renew}
	case is(alertUnknownCA):
		return &Error{What: refuses + ": it does not trust who signed it",
			Do: "have one signed by a CA that the server trusts, and name it in " + own}
	case is(alertRevoked):
		return &Error{What: refuses + ": it is revoked", Do: renew}
	}
	return &Error{What: refuses, Do: log + "; see " + own}
}

// AskedInVain reports whether the server asked for a client certificate and we have none: what it refuses behind the
// handshake, a login for example, it may refuse for that.
func (h *Handshake) AskedInVain() bool { return h.asked.Load() && h.client == nil }

// given is where a setting stands, for who has to change it. Without files the configuration came from a program.
func (h *Handshake) given(value string) string {
	switch {
	case h.peer.Base != nil && h.peer.TLS == (TLS{}):
		return "not in use: the program gave a configuration of its own"
	case value == "":
		return "not set"
	}
	return "now " + value
}

// HungUp reports whether err is the end of a connection by the other side.
func HungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

func subject(c *x509.Certificate) string {
	if c == nil {
		return "which is none"
	}
	if s := c.Subject.String(); s != "" {
		return s
	}
	return names(c)
}

// names are those that a certificate is good for.
func names(c *x509.Certificate) string {
	all := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return "no host at all"
	}
	const most = 5
	if len(all) > most {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", len(all)-most)
	}
	return strings.Join(all, ", ")
}
