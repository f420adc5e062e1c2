package config

import (
	"cmp"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"unicode"
)

const wantSMTP = "smtp:// or smtps:// with a host and at most a port, or nothing; user name and password have keys of their own"

// submissionPorts are the ports of mail servers by the scheme, unless the URL names one.
var submissionPorts = map[string]string{"smtp": "587", "smtps": "465"}

// parseSMTP returns the URL of a mail server with its port.
func parseSMTP(s *scalar) (any, error) {
	u, err := url.Parse(s.text)
	if err != nil || submissionPorts[u.Scheme] == "" || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errUnwanted
	}
	port := cmp.Or(u.Port(), submissionPorts[u.Scheme])
	if !isPort(port, 1) {
		return nil, errPort
	}
	return &url.URL{Scheme: u.Scheme, Host: net.JoinHostPort(u.Hostname(), port)}, nil
}

// isSender reports whether a text is an e-mail address with or without a name, or empty.
func isSender(s string) bool {
	a, err := mail.ParseAddress(s)
	return s == "" || err == nil && isPrintable(a.Address) && (a.Address == s || a.Name != "") && !strings.ContainsFunc(s, unicode.IsControl)
}

var domainName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

// isHelo reports whether a text is what a mail client may call itself: the name of a host, an address literal or nothing.
func isHelo(s string) bool {
	if s == "" || domainName.MatchString(s) && net.ParseIP(s) == nil {
		return true
	}
	inner, open := strings.CutPrefix(s, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	v6, is6 := strings.CutPrefix(inner, "IPv6:")
	a, err := netip.ParseAddr(v6)
	return open && closed && err == nil && a.Is6() == is6 && a.Zone() == ""
}
