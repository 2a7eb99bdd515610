package server

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"unicode"
)

// Proxy is one that has made sure who asks, and says so in a header.
type Proxy struct {
	// Header names the person.
	Header string
	// Peers are the addresses of the proxy. From others the header means nothing.
	Peers []netip.Prefix
	// GroupHeader lists, with commas, the groups of the person: who is not in Group may look and not act. "": all may
	// act.
	GroupHeader, Group string
}

const (
	// maxName bounds a name, which stands in rows.
	maxName = 100
	// byProxy stands behind the name of a person whom a proxy names. The name of a token is one word, so nobody can be
	// called by a proxy what a token is called, in the audit or as owner of a form or an Idempotency-Key.
	byProxy = " (proxy)"
)

// nameable reports whether somebody may be called like that in rows and on pages.
func nameable(name string) bool {
	return len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// who is the person that the proxy names. A header that is there twice names nobody: one of the two may have come
// through from outside.
func (p Proxy) who(r *http.Request) (Person, bool) {
	names := r.Header.Values(p.Header)
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if p.Header == "" || err != nil || len(names) != 1 || !p.trusts(peer.Addr().Unmap()) {
		return Person{}, false
	}
	name := strings.TrimSpace(names[0])
	if name == "" || !nameable(name) {
		return Person{}, false
	}
	person := Person{Name: name + byProxy, Right: Act}
	if p.GroupHeader != "" && !p.groups(r) {
		person.Right = Look
	}
	return person, true
}

func (p Proxy) trusts(peer netip.Addr) bool {
	return slices.ContainsFunc(p.Peers, func(n netip.Prefix) bool { return n.Contains(peer) })
}

func (p Proxy) groups(r *http.Request) bool {
	lists := r.Header.Values(p.GroupHeader)
	return len(lists) == 1 && slices.ContainsFunc(strings.Split(lists[0], ","), func(g string) bool {
		return strings.TrimSpace(g) == p.Group
	})
}
