package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
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

var headerName = regexp.MustCompile(`^[A-Za-z0-9-]+$`)

// ParseProxy reads a proxy in the form HEADER CIDR[,CIDR…] [GROUPHEADER=GROUP]. Its errors complete the sentence
// "NAME=value …".
func ParseProxy(text string) (Proxy, error) {
	var p Proxy
	words := strings.Fields(text)
	if len(words) < 2 || len(words) > 3 {
		return p, errors.New("must be HEADER CIDR[,CIDR…] [GROUPHEADER=GROUP]")
	}
	p.Header = http.CanonicalHeaderKey(words[0])
	if !headerName.MatchString(p.Header) {
		return p, fmt.Errorf("has %q where a header's name belongs", words[0])
	}
	for _, peer := range strings.Split(words[1], ",") {
		prefix, err := netip.ParsePrefix(peer)
		if ip, single := netip.ParseAddr(peer); err != nil && single == nil {
			prefix, err = ip.Prefix(ip.BitLen())
		}
		if err != nil {
			return p, fmt.Errorf("has %q where an address or a network like 10.0.0.0/8 belongs", peer)
		}
		p.Peers = append(p.Peers, prefix.Masked())
	}
	if len(words) == 3 {
		name, group, ok := strings.Cut(words[2], "=")
		p.GroupHeader, p.Group = http.CanonicalHeaderKey(name), group
		if !ok || group == "" || strings.Contains(group, ",") || !headerName.MatchString(p.GroupHeader) {
			return p, fmt.Errorf("has %q where GROUPHEADER=GROUP belongs", words[2])
		}
	}
	return p, nil
}

const (
	// maxName bounds a name, which stands in rows.
	maxName = 100
	// byProxy stands behind the name of a person whom a proxy names. The name of a token is one word, so nobody can be
	// called by a proxy what a token is called, in the audit or as owner of a form or an Idempotency-Key.
	byProxy = " (proxy)"
)

// who is the person that the proxy names. A header that is there twice names nobody: one of the two may have come
// through from outside.
func (p Proxy) who(r *http.Request) (Person, bool) {
	names := r.Header.Values(p.Header)
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if p.Header == "" || err != nil || len(names) != 1 || !p.trusts(peer.Addr().Unmap()) {
		return Person{}, false
	}
	name := strings.TrimSpace(names[0])
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
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
