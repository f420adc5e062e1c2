package config

import (
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Notifications holds where operators are notified.
type Notifications struct {
	Webhook *url.URL // receives every notification as JSON; nil: none
}

// Mail holds the mail server.
type Mail struct {
	SMTP     *SMTP  // nil: the gateway sends no mail
	Username string // empty: without authentication
	Password Secret
	From     string // address of the sender, with or without a name
	Helo     string // what the gateway calls itself to the server; empty: the name or the address of this machine
	Alerts   bool   // administrators get notifications by mail
}

// SMTP is the address of a mail server.
type SMTP struct {
	Host        string
	Port        int
	ImplicitTLS bool // otherwise by STARTTLS
}

// String returns the address as it is configured.
func (s SMTP) String() string {
	scheme := "smtp"
	if s.ImplicitTLS {
		scheme = "smtps"
	}
	return scheme + "://" + net.JoinHostPort(s.Host, strconv.Itoa(s.Port))
}

// Ports of mail servers, unless the URL names one.
const (
	submissionPort  = 587
	submissionsPort = 465
)

// smtpServer decodes the URL of a mail server; empty means none. A URL with a password is not quoted.
func smtpServer(to **SMTP) decodeFunc {
	const want = "smtp:// or smtps:// with a host and at most a port, or nothing; user name and password have keys of their own"
	return func(v value) {
		s, ok := v.url(want)
		if !ok || s.text == "" {
			return
		}
		u, err := url.Parse(s.text)
		if err != nil || u.Scheme != "smtp" && u.Scheme != "smtps" || u.Hostname() == "" || u.User != nil ||
			strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			v.errorf("want %s", want)
			return
		}
		server := SMTP{Host: u.Hostname(), Port: submissionPort, ImplicitTLS: u.Scheme == "smtps"}
		if server.ImplicitTLS {
			server.Port = submissionsPort
		}
		if port := u.Port(); port != "" {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil || n == 0 {
				v.errorf("a port is from 1 to 65535")
				return
			}
			server.Port = int(n)
		}
		*to = &server
	}
}

// sender decodes an e-mail address with or without a name, which may be empty.
func sender(to *string) decodeFunc {
	return text(to, func(s string) error {
		if s == "" {
			return nil
		}
		parsed, err := mail.ParseAddress(s)
		if err != nil || !isPrintable(parsed.Address) || parsed.Address != s && parsed.Name == "" || strings.ContainsFunc(s, unicode.IsControl) {
			return errSender
		}
		return nil
	})
}

var domainName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

// helo decodes what a mail client calls itself: the name of a host, or an address literal. It may be empty.
func helo(to *string) decodeFunc {
	return text(to, func(s string) error {
		if s == "" || domainName.MatchString(s) && net.ParseIP(s) == nil {
			return nil
		}
		inner, open := strings.CutPrefix(s, "[")
		inner, closed := strings.CutSuffix(inner, "]")
		v6, is6 := strings.CutPrefix(inner, "IPv6:")
		if a, err := netip.ParseAddr(v6); !open || !closed || err != nil || a.Is6() != is6 || a.Zone() != "" {
			return errHelo
		}
		return nil
	})
}
