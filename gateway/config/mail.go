package config

import (
	"cmp"
	"errors"
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

// parseSender checks an e-mail address with or without a name, which may be empty.
func parseSender(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	parsed, err := mail.ParseAddress(s)
	if err != nil || !isPrintable(parsed.Address) || parsed.Address != s && parsed.Name == "" || strings.ContainsFunc(s, unicode.IsControl) {
		return "", errors.New("an e-mail address such as basegate@example.org or Basegate <basegate@example.org>, or nothing")
	}
	return s, nil
}

var domainName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

// parseHelo checks what a mail client calls itself: the name of a host, or an address literal. It may be empty.
func parseHelo(s string) (string, error) {
	if s == "" || domainName.MatchString(s) && net.ParseIP(s) == nil {
		return s, nil
	}
	inner, open := strings.CutPrefix(s, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	v6, is6 := strings.CutPrefix(inner, "IPv6:")
	if a, err := netip.ParseAddr(v6); !open || !closed || err != nil || a.Is6() != is6 || a.Zone() != "" {
		return "", errors.New("the name of a host such as gateway.example.org, an address such as [192.0.2.1] or [IPv6:2001:db8::1], or nothing")
	}
	return s, nil
}
