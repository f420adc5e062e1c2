package config

import (
	"net/netip"
	"net/url"
)

// OIDC holds the identity provider with which users can sign in beside passwords.
type OIDC struct {
	Issuer         *url.URL // nil: there is none
	Name           string   // of the provider, on the button of the sign-in page
	ClientID       string
	ClientSecret   Secret
	AllowedDomains []string // of e-mail addresses for which an account is created at the first sign-in
	AllowedGroups  []string // whose members get an account at the first sign-in
	GroupsClaim    string   // the claim that lists the user's groups, or the path to it
	AdminGroup     string   // whose members are administrators; empty: the provider does not decide
	TrustEmail     bool     // accepts addresses about which the provider does not say whether they are verified
}

// issuer decodes the URL of an identity provider; empty means none.
func issuer(to **url.URL) decodeFunc {
	const want = "https:// with a host, or http:// on this machine"
	decode := serverURL(to)
	return func(v value) {
		s, ok := v.url(want)
		if !ok || s.text == "" {
			return
		}
		decode(v)
		if u := *to; u != nil {
			if u.Scheme != "https" && !isLoopback(u.Hostname()) {
				v.errorf("want %s, got %s", want, s.got)
			}
			u.Path, u.RawPath = mustPath(s.text) // an issuer is compared exactly, its trailing slash included
		}
	}
}

// mustPath returns the path of a URL that serverURL has accepted.
func mustPath(text string) (path, rawPath string) {
	u, err := url.Parse(text)
	if err != nil {
		return "", ""
	}
	return u.Path, u.RawPath
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}
