package config

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
)

// Proxy is one that has made sure who asks for pages, and says so in a header.
type Proxy struct {
	// Header names the person.
	Header string
	// Peers are the addresses of the proxy. From others the header means nothing.
	Peers []netip.Prefix
	// GroupHeader lists, with commas, the groups of the person: who is not in Group may look and not act. "": all may
	// act.
	GroupHeader, Group string
}

var proxyForm = regexp.MustCompile(`^([A-Za-z0-9-]+)\s+(\S+)(?:\s+([A-Za-z0-9-]+)=([^,\s]+))?$`)

func adminProxy() rule[Proxy] {
	const text = "HEADER CIDR[,CIDR…] [GROUPHEADER=GROUP]"
	return rule[Proxy]{text: text, read: func(raw string) (p Proxy, err error) {
		parts := proxyForm.FindStringSubmatch(strings.TrimSpace(raw))
		if parts == nil {
			return p, errors.New("must be " + text)
		}
		p.Header, p.GroupHeader, p.Group = http.CanonicalHeaderKey(parts[1]), http.CanonicalHeaderKey(parts[3]), parts[4]
		for peer := range strings.SplitSeq(parts[2], ",") {
			prefix, err := netip.ParsePrefix(peer)
			if ip, single := netip.ParseAddr(peer); err != nil && single == nil {
				prefix, err = ip.Prefix(ip.BitLen())
			}
			if err != nil {
				return p, fmt.Errorf("has %q where an address or a network like 10.0.0.0/8 belongs", peer)
			}
			p.Peers = append(p.Peers, prefix.Masked())
		}
		return p, nil
	}}
}
