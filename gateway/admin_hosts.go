package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"basegate/gateway/config"
)

// requireAdminHost is middleware that refuses requests whose Host is a name that anyone could have registered. A page in
// a browser reaches a listener on loopback or in a private network by letting its own name resolve to that address (DNS
// rebinding), and could read metrics and profiles as its own origin.
func requireAdminHost(c config.Server, next http.Handler) http.Handler {
	names := map[string]bool{}
	for _, name := range c.AdminHosts {
		names[canonicalHost(name)] = true
	}
	if host, _, err := net.SplitHostPort(c.AdminListen); err == nil {
		names[canonicalHost(host)] = true
	}
	if name, err := os.Hostname(); err == nil {
		names[canonicalHost(name)] = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address := url.URL{Host: r.Host}
		if host := canonicalHost(address.Hostname()); !names[host] && !isPrivateHost(host) {
			http.Error(w, "this listener does not serve this host; server.admin_hosts can list it", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isPrivateHost returns whether a host is an address, or a name of one label such as localhost or the name of a container,
// which is not in the public DNS. It is empty in an HTTP/1.0 request without Host, which no browser sends.
func isPrivateHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || !strings.Contains(host, ".")
}

// canonicalHost returns a name in lower case and without the dot of the root.
func canonicalHost(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
