package mysqldb

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// dialer connects with the login and the certificates of the moment. The driver keeps both for ever, and configurations
// of TLS in a registry of the whole program's; so each connection gets a connector of its own.
type dialer struct {
	cfg        *mysql.Config
	peer       certs.Peer
	encrypted  bool
	store      *certs.Store
	currentDSN func() string
}

// newDialer takes out of cfg what it says of certificates. Files are read here for the first time.
func newDialer(cfg *mysql.Config, o Options) (*dialer, error) {
	files := TLSOf(cfg)
	for _, name := range tlsParameters {
		delete(cfg.Params, name)
	}
	d := &dialer{cfg: cfg, currentDSN: o.CurrentDSN, store: o.Certs, encrypted: cfg.TLS != nil || files != (certs.TLS{}),
		peer: certs.Peer{TLS: files, Host: HostOf(cfg), Setting: TLSSetting}}
	if d.store == nil {
		d.store = &certs.Store{Warn: o.Warn}
	}
	switch {
	case o.TLS != nil && (d.encrypted || cfg.TLSConfig != ""):
		return nil, errors.New("a TLS configuration is given, and the DSN speaks of tls or of certificates too: keep one")
	case o.TLS != nil:
		d.peer.Base, d.encrypted = o.TLS, true
	case cfg.TLSConfig != "" && cfg.TLSConfig != "true":
		d.peer.Base = cfg.TLS // tls=skip-verify, preferred, or a name of the program's
	}
	cfg.TLS = nil
	if d.encrypted && d.peer.Base == nil {
		if _, err := d.store.Config(files); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Connect makes one connection.
func (d *dialer) Connect(ctx context.Context) (driver.Conn, error) {
	cfg := d.cfg.Clone()
	var logged atomic.Pointer[error]
	cfg.Logger = saying(func(err error) { logged.Store(&err) }) // what goes wrong is returned, and logged once
	if d.currentDSN != nil {
		if now, err := ParseDSN(d.currentDSN()); err == nil {
			cfg.User, cfg.Passwd = now.User, now.Passwd
		}
	}
	var handshake *certs.Handshake
	if d.encrypted {
		var err error
		if handshake, err = d.store.Begin(d.peer); err != nil {
			return nil, d.at(err)
		}
		cfg.TLS = handshake.Config
	}
	var raw *patient
	if handshake != nil && (cfg.Net == "tcp" || cfg.Net == "unix") && cfg.DialFunc == nil {
		cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			raw = &patient{Conn: conn, system: conn.(syscall.Conn)}
			return raw, nil
		}
	}
	inner, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, errors.New("the driver refuses the DSN") // its error may hold any part of it
	}
	if handshake == nil {
		return inner.Connect(ctx)
	}
	// The driver bounds the dial and each read and write, but not a handshake of TLS.
	bound := cfg.Timeout + cfg.ReadTimeout
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	conn, err := inner.Connect(bounded)
	switch {
	case err == nil:
		if raw != nil {
			raw.connected.Store(true)
		}
		return conn, nil
	case ctx.Err() != nil:
		return nil, err
	case bounded.Err() != nil:
		return nil, d.at(&certs.Error{What: fmt.Sprintf("the handshake was not over within %v", bound)})
	}
	var last error
	if said := logged.Load(); said != nil {
		last = *said
	}
	return nil, d.explain(handshake, err, last)
}

// Driver is the driver's.
func (d *dialer) Driver() driver.Driver { return mysql.MySQLDriver{} }

// explain says what a failed connection has to do with certificates, if it has. The driver keeps what ended it to its
// log.
func (d *dialer) explain(h *certs.Handshake, err, logged error) error {
	if errors.Is(err, mysql.ErrNoTLS) {
		return d.at(&certs.Error{What: "the server does not speak TLS", Err: err,
			Do: "switch it on at the server, or take tls and certificates out of ROLLBACKD_MYSQL_DSN and " + TLSSetting + "_…"})
	}
	const accessDenied = 1045 // or an encryption that the account requires is missing
	if server, ok := said(err); ok {
		if server.Number == accessDenied && h.AskedInVain() {
			return d.at(fmt.Errorf("%w (the server asked for a client certificate, and we have none: if the account has "+
				"REQUIRE X509, name one in %s_CERT_FILE and _KEY_FILE)", err, TLSSetting))
		}
		return err
	}
	explained := h.Explain(err, logged)
	if e, ok := errors.AsType[*certs.Error](explained); ok {
		return d.at(e)
	}
	return err
}

func (d *dialer) at(err error) error { return fmt.Errorf("MySQL at %s: %w", d.cfg.Addr, err) }

// patient lets the driver read why the server hung up, when it did so before the driver wrote. Under TLS 1.3 a server
// refuses a client certificate in that moment, and the driver reads nothing any more once a write has failed.
type patient struct {
	net.Conn
	system    syscall.Conn // by which the driver looks whether an idle connection was cut
	connected atomic.Bool
}

// Write takes what the server does not want to hear any more, while the connection is made.
func (p *patient) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	if err != nil && !p.connected.Load() && certs.HungUp(err) {
		return len(b), nil // the next read says it
	}
	return n, err
}

// SyscallConn is that of the connection.
func (p *patient) SyscallConn() (syscall.RawConn, error) { return p.system.SyscallConn() }

// saying is a log of the driver, which writes there, mostly, the error that it does not return.
type saying func(error)

// Print is called by the driver.
func (s saying) Print(v ...any) {
	for _, said := range v {
		if err, ok := said.(error); ok {
			s(err)
		}
	}
}
