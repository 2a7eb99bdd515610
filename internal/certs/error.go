package certs

import (
	"cmp"
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
	alertHandshakeFailure   tls.AlertError = 40
	alertBadCertificate     tls.AlertError = 42
	alertUnsupported        tls.AlertError = 43
	alertRevoked            tls.AlertError = 44
	alertExpired            tls.AlertError = 45
	alertCertificateUnknown tls.AlertError = 46
	alertUnknownCA          tls.AlertError = 48
	alertAccessDenied       tls.AlertError = 49
	alertDecrypt            tls.AlertError = 51
	alertProtocolVersion    tls.AlertError = 70
	alertUnrecognizedName   tls.AlertError = 112
	alertRequired           tls.AlertError = 116
)

var alerts = []tls.AlertError{
	alertHandshakeFailure, alertBadCertificate, alertUnsupported, alertRevoked, alertExpired, alertCertificateUnknown,
	alertUnknownCA, alertAccessDenied, alertDecrypt, alertProtocolVersion, alertUnrecognizedName, alertRequired,
}

// alertOf is the alert that the other side has sent. crypto/tls keeps its type to itself, but not what the type prints.
func alertOf(err error) (tls.AlertError, bool) {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" || op.Err == nil {
		return 0, false
	}
	i := slices.IndexFunc(alerts, func(a tls.AlertError) bool { return a.Error() == op.Err.Error() })
	if i < 0 {
		return 0, true
	}
	return alerts[i], true
}

// Explain turns the errors of a handshake, and of what came instead of the server's first byte, into an [Error]. Of
// several the first one counts that says something; what has nothing to do with certificates comes back as it is.
func (h *Handshake) Explain(errs ...error) error {
	for _, err := range errs {
		if known, ok := errors.AsType[*Error](err); ok {
			return known
		}
		if e := h.explain(err); e != nil {
			e.Err, e.Server = err, h.peer.Server
			h.failed.Store(e)
			return e
		}
	}
	return errors.Join(errs...)
}

func (h *Handshake) explain(err error) *Error {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return h.ofServer(err)
	}
	if alert, ok := alertOf(err); ok {
		return h.ofClient(alert)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return &Error{What: "what answers there does not speak TLS",
			Do: "give the port on which the server does, or switch TLS on at the server"}
	}
	if h.done.Load() && h.asked.Load() && HungUp(err) {
		return h.hungUp()
	}
	return nil
}

// ofServer is what we do not like about the server's certificate.
func (h *Handshake) ofServer(err error) *Error {
	if wrong, ok := errors.AsType[x509.HostnameError](err); ok {
		return &Error{
			What: fmt.Sprintf("the server's certificate is not for %q but for %s", wrong.Host, names(wrong.Certificate)),
			Do: "connect under one of its names, or say in " + h.peer.Setting + "_SERVER_NAME which to expect, which is " +
				given(h.peer.ServerName),
		}
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return &Error{
			What: "the server's certificate is signed by nobody who is trusted here",
			Do: "name the PEM file of the CA that has signed it in " + h.peer.Setting + "_CA_FILE, which is " +
				h.given(h.peer.CA),
		}
	}
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case ok && invalid.Reason == x509.Expired && invalid.Cert != nil && time.Now().Before(invalid.Cert.NotBefore):
		return &Error{
			What: fmt.Sprintf("the server's certificate, %s, is not valid before %s", subject(invalid.Cert),
				day(invalid.Cert.NotBefore)),
			Do: "set this host's clock, or let the server use another one till then",
		}
	case ok && invalid.Reason == x509.Expired && invalid.Cert != nil:
		whose := "the server's certificate"
		if invalid.Cert.IsCA {
			whose = "the certificate of a CA of the server's"
		}
		return &Error{What: whose + ", " + subject(invalid.Cert) + ", has expired on " + day(invalid.Cert.NotAfter),
			Do: "renew it at the server; nothing is to be changed here, unless this host's clock is wrong"}
	}
	return &Error{What: "the server's certificate is refused", Do: "give the server another one"}
}

// ofClient is what the server does not like about ours.
func (h *Handshake) ofClient(alert tls.AlertError) *Error {
	ours := "the server refuses our client certificate, " + h.ours()
	renew := h.renew()
	switch {
	case alert == alertProtocolVersion:
		return &Error{What: "the server speaks no version of TLS that is safe", Do: "switch on TLS 1.2 or 1.3 at the server"}
	case alert == alertUnrecognizedName:
		return &Error{What: "the server does not know the name under which it is called, " + h.Config.ServerName,
			Do: "see " + h.peer.Setting + "_SERVER_NAME, which is " + given(h.peer.ServerName)}
	case !h.asked.Load():
		return &Error{What: "the server ends the handshake", Do: "its log says why"}
	case h.client == nil:
		return h.noCertificate("the server wants a client certificate, and we have none")
	case alert == alertExpired, h.outOfDate() != nil:
		return cmp.Or(h.outOfDate(), &Error{What: ours + ": it has expired by the server's clock", Do: renew})
	case alert == alertUnknownCA:
		return &Error{What: ours + ": it does not trust who signed it",
			Do: "have one signed by a CA that the server trusts, and name it in " + h.peer.Setting + "_CERT_FILE"}
	case alert == alertRevoked:
		return &Error{What: ours + ": it is revoked", Do: renew}
	}
	return &Error{What: ours, Do: "the server's log says why; see " + h.peer.Setting + "_CERT_FILE"}
}

// outOfDate is what is wrong with our certificate by our own clock; nil if nothing is.
func (h *Handshake) outOfDate() *Error {
	switch now := time.Now(); {
	case now.After(h.client.NotAfter):
		return &Error{What: "our client certificate, " + subject(h.client) + ", has expired on " + day(h.client.NotAfter),
			Do: h.renew()}
	case now.Before(h.client.NotBefore):
		return &Error{What: "our client certificate, " + subject(h.client) + ", is not valid before " +
			day(h.client.NotBefore), Do: "use another one till then, or set this host's clock"}
	}
	return nil
}

func (h *Handshake) renew() string {
	return "renew " + h.peer.Setting + "_CERT_FILE and _KEY_FILE (they are read again without a restart)"
}

// hungUp is a connection that ends without a word between the handshake and the server's first byte.
func (h *Handshake) hungUp() *Error {
	if h.client == nil {
		return h.noCertificate("the server hung up behind the handshake, in which it asked for a client certificate, and " +
			"we have none")
	}
	if e := h.outOfDate(); e != nil {
		return e
	}
	return &Error{What: "the server hung up behind the handshake, without a word about our client certificate, " +
		h.ours(), Do: "its log says why; see " + h.peer.Setting + "_CERT_FILE"}
}

func (h *Handshake) noCertificate(what string) *Error {
	return &Error{What: what, Do: "name one, and its key, in " + h.peer.Setting + "_CERT_FILE and _KEY_FILE"}
}

// AskedInVain reports whether the server asked for a client certificate and we have none: what it refuses behind the
// handshake, a login for example, it may refuse for that.
func (h *Handshake) AskedInVain() bool { return h.asked.Load() && h.client == nil }

func (h *Handshake) ours() string {
	if h.client == nil {
		return "which is none"
	}
	return subject(h.client)
}

// given is where a setting stands, for who has to change it. Without files the configuration came from a program.
func (h *Handshake) given(value string) string {
	if h.peer.Base != nil && h.peer.TLS == (TLS{}) {
		return "not in use: the program gave a configuration of its own"
	}
	return given(value)
}

func given(value string) string {
	if value == "" {
		return "not set"
	}
	return "now " + value
}

// HungUp reports whether err is the end of a connection by the other side.
func HungUp(err error) bool {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

func subject(c *x509.Certificate) string {
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
