package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// clientAddress returns a function that returns the address of a request's client. It reads X-Forwarded-For from right to
// left, as long as the address so far is that of a trusted proxy: what is further left may be made up.
func clientAddress(trusted []netip.Prefix) func(*http.Request) string {
	isTrusted := func(a netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(a.WithZone("")) })
	}
	return func(r *http.Request) string {
		address, ok := parseHop(r.RemoteAddr)
		if !ok {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			return host
		}
		hops := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
		for hops != "" && isTrusted(address) {
			comma := strings.LastIndexByte(hops, ',')
			hop := strings.TrimSpace(hops[comma+1:])
			hops = hops[:max(comma, 0)]
			if hop == "" {
				continue
			}
			before, ok := parseHop(hop)
			if !ok { // "unknown", or a name
				break
			}
			address = before
		}
		return address.String()
	}
}

// parseHop parses an address with or without a port, and an IPv6 address in brackets or not.
func parseHop(text string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return withPort.Addr().Unmap(), true
	}
	if inner, found := strings.CutPrefix(text, "["); found {
		if inner, found = strings.CutSuffix(inner, "]"); !found || !strings.Contains(inner, ":") {
			return netip.Addr{}, false
		}
		text = inner
	}
	address, err := netip.ParseAddr(text)
	return address.Unmap(), err == nil
}
