package server

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// forwarded begin the names of headers with which proxies, balancers and tunnels say that they pass something on.
var forwarded = []string{
	"Forwarded", "X-Forwarded", "X-Original-", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "X-Proxy", "X-Scheme",
	"X-Envoy-", "X-Amz", "X-Appengine-", "X-Azure-", "X-Arr-", "X-Ms-", "X-Vercel-", "X-Nf-", "X-Sucuri-", "X-Varnish",
	"True-Client-Ip", "Client-Ip", "Cf-", "Cdn-Loop", "Fastly-", "Fly-", "Akamai-", "Incap-Client-Ip", "Ngrok-",
	"Tailscale-", "Via", "Max-Forwards", "Proxy-",
}

// local says why a request is not certainly from this machine; nil when it is. The address that the kernel tells counts
// and no header does. But the loopback address alone proves little: a browser on this machine may have been led here by
// a name of a stranger's that resolves to it, so the name that it asked for must be the loopback's too; and a proxy on
// this machine asks for the whole world, so a request that says it was forwarded is somebody else's.
func local(r *http.Request) error {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return errNotLocal
	}
	if !loopbackName(r.Host) {
		return errHost
	}
	if !r.ProtoAtLeast(1, 1) { // people's programs have long spoken it; proxies that say nothing of themselves may not
		return errForwarded
	}
	for name := range r.Header {
		for _, begin := range forwarded {
			if strings.HasPrefix(name, begin) {
				return errForwarded
			}
		}
	}
	return nil
}

func loopbackName(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostPort, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
