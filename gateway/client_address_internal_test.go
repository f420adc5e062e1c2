package gateway

import (
	"net/http"
	"net/netip"
	"testing"
)

func TestClientAddressIsReadFromTheProxiesThatAreTrusted(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("169.254.0.0/16")}
	for _, c := range []struct {
		name string
		peer string
		xff  []string
		want string
	}{
		{"no header", "10.0.0.1:5000", nil, "10.0.0.1"},
		{"a peer that is not trusted", "198.51.100.1:5000", []string{"203.0.113.7"}, "198.51.100.1"},
		{"one address", "10.0.0.1:5000", []string{"203.0.113.7"}, "203.0.113.7"},
		{"with a port, as of Azure", "10.0.0.1:5000", []string{"203.0.113.7:51234"}, "203.0.113.7"},
		{"IPv6 with a port", "10.0.0.1:5000", []string{"[2001:db8::1]:443"}, "2001:db8::1"},
		{"IPv6 in brackets", "10.0.0.1:5000", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"IPv6 without brackets", "[fd00::1]:5000", []string{"2001:db8::1"}, "2001:db8::1"},
		{"IPv4 in IPv6", "[::ffff:10.0.0.1]:5000", []string{"::ffff:203.0.113.7"}, "203.0.113.7"},
		{"a trailing comma", "10.0.0.1:5000", []string{"203.0.113.7,"}, "203.0.113.7"},
		{"empty entries and blanks", "10.0.0.1:5000", []string{" , 203.0.113.7:1 ,\t, 10.0.0.2:2 , "}, "203.0.113.7"},
		{"only commas", "10.0.0.1:5000", []string{",,"}, "10.0.0.1"},
		{"several lines", "10.0.0.1:5000", []string{"198.51.100.9", "203.0.113.7:80, 10.0.0.2"}, "203.0.113.7"},
		{"an empty line", "10.0.0.1:5000", []string{"203.0.113.7", ""}, "203.0.113.7"},
		{"what is left of a client is made up", "10.0.0.1:5000", []string{"10.9.9.9, 198.51.100.9, 203.0.113.7"}, "203.0.113.7"},
		{"proxies with ports", "10.0.0.1:5000", []string{"203.0.113.7, 10.0.0.3:80, [fd00::3]:80"}, "203.0.113.7"},
		{"all are trusted", "10.0.0.1:5000", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"garbage behind the client", "10.0.0.1:5000", []string{"unknown, 203.0.113.7"}, "203.0.113.7"},
		{"an unknown client of a proxy", "10.0.0.1:5000", []string{"203.0.113.7, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"no port after the colon", "10.0.0.1:5000", []string{"203.0.113.7:"}, "10.0.0.1"},
		{"IPv4 in brackets", "10.0.0.1:5000", []string{"[203.0.113.7]"}, "10.0.0.1"},
		{"a link-local peer", "[fe80::1%eth0]:5000", []string{"203.0.113.7"}, "fe80::1%eth0"},
		{"a peer without an address", "@", []string{"203.0.113.7"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.xff}}
			if got := clientAddress(trusted)(r); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	direct := &http.Request{RemoteAddr: "10.0.0.1:5000", Header: http.Header{"X-Forwarded-For": {"203.0.113.7"}}}
	if got := clientAddress(nil)(direct); got != "10.0.0.1" {
		t.Errorf("nobody is trusted: got %q, want 10.0.0.1", got)
	}
}
