package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

var (
	errAddress = errors.New("host:port such as 127.0.0.1:8080, with a port from 0 to 65535")
	errAny     = errors.New("host:port; to listen on every address, leave the host out")
	errHost    = errors.New("the name of a host such as gateway.example.org, without a port")
	errPath    = errors.New("the path of a file")
)

// address decodes a listen address, host:port. An empty host means every address, port 0 any free port.
func address(to *string) decodeFunc {
	return text(to, func(s string) error {
		host, port, err := net.SplitHostPort(s)
		if err == nil && strings.Contains(host, "*") {
			return fmt.Errorf("%w: %q", errAny, ":"+port)
		}
		if err != nil || strings.ContainsAny(host, " /@") {
			return errAddress
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return errAddress
		}
		return nil
	})
}

// hostName decodes the name of a host.
func hostName(to *string) decodeFunc {
	return text(to, func(s string) error {
		if s == "" || !isPrintable(s) || strings.ContainsAny(s, ":/@?#[]*") {
			return errHost
		}
		return nil
	})
}

// optionalPath decodes a path, which may be empty.
func optionalPath(to *string) decodeFunc {
	return text(to, func(s string) error {
		if strings.ContainsRune(s, 0) {
			return errPath
		}
		return nil
	})
}

// nonEmptyPath decodes a path.
func nonEmptyPath(to *string) decodeFunc {
	return text(to, func(s string) error {
		if s == "" || strings.ContainsRune(s, 0) {
			return errPath
		}
		return nil
	})
}

// serverURL decodes the URL of a server: scheme, host and an optional path prefix.
func serverURL(to **url.URL) decodeFunc {
	const want = "http:// or https:// with a host, and at most a path prefix"
	return func(v value) {
		s, ok := v.url(want)
		if !ok {
			return
		}
		u, problem := parseServerURL(s.text)
		switch {
		case problem == "":
			*to = u
		case u != nil && u.User != nil:
			v.errorf("want %s; %s", want, problem) // the text is not quoted: it holds a password
		default:
			v.errorf("want %s; %s, got %s", want, problem, s.got)
		}
	}
}

// publicURL decodes the URL of the gateway, which serves at the root of a host: links of the console have no prefix.
func publicURL(to **url.URL) decodeFunc {
	var u *url.URL
	decode := serverURL(&u)
	return func(v value) {
		decode(v)
		if *to = u; u != nil && u.Path != "" {
			root := url.URL{Scheme: u.Scheme, Host: u.Host}
			v.errorf("want a URL without a path, such as %s: the gateway is served at the root of a host, got %q", &root, u)
		}
	}
}

// parseServerURL returns the URL without trailing slashes, so that paths can be appended, and what is wrong with it, or
// "".
func parseServerURL(text string) (u *url.URL, problem string) {
	u, err := url.Parse(text)
	switch {
	case err != nil || strings.ContainsAny(text, " \t\r\n"):
		return nil, "this is not a URL"
	case u.User != nil:
		return u, "no user name and no password"
	case u.Scheme != "http" && u.Scheme != "https":
		return u, "this is neither"
	case u.Hostname() == "":
		return u, "the host is missing"
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(text, "#"):
		return u, "no query and no fragment"
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return u, "a port is from 1 to 65535"
		}
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return u, ""
}

// webhook decodes the URL of a webhook; empty means none. Webhook URLs often contain a secret, so no diagnostic quotes
// one.
func webhook(to **url.URL) decodeFunc {
	const want = "http:// or https:// with a host, or nothing"
	return func(v value) {
		s, ok := v.url(want)
		if !ok || s.text == "" {
			return
		}
		u, err := url.Parse(s.text)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
			v.errorf("want %s", want)
			return
		}
		v.doc.holdsSecrets = v.doc.holdsSecrets || !s.expanded
		*to = u
	}
}

// fileOrWebhook decodes the path of a file or the URL of a webhook; empty means neither. As with webhook, no diagnostic
// quotes a URL.
func fileOrWebhook(to *string) decodeFunc {
	const want = "the path of a file, or http:// or https:// with a host, or nothing"
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok || s.text == "" {
			return
		}
		if !strings.Contains(s.text, "://") {
			if strings.ContainsRune(s.text, 0) || strings.HasSuffix(s.text, "/") {
				v.errorf("want %s, got %s", want, s.got)
				return
			}
			*to = s.text
			return
		}
		var u *url.URL
		if webhook(&u)(v); u != nil {
			*to = u.String()
		}
	}
}

// network decodes a CIDR prefix.
func network(to *netip.Prefix) decodeFunc {
	const want = "a network such as 10.0.0.0/8 or fd00::/8"
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		prefix, err := netip.ParsePrefix(s.text)
		switch {
		case err != nil:
			v.errorf("want %s, got %s", want, s.got)
		case prefix != prefix.Masked():
			v.errorf("want %s with the bits after the prefix all 0, got %s", want, s.got)
		default:
			*to = prefix
		}
	}
}

// origin decodes the origin of a web page as browsers send it: scheme, host and a port that is not the scheme's own.
func origin(to *string) decodeFunc {
	const want = "an origin such as https://lab.example.org, without a path"
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		u, problem := parseServerURL(s.text)
		switch {
		case problem != "" || u.Path != "" || strings.HasSuffix(s.text, "/"):
			v.errorf("want %s, got %s", want, s.got)
		case u.Scheme == "https" && u.Port() == "443", u.Scheme == "http" && u.Port() == "80":
			v.errorf("want %s; browsers leave out the port %s, got %s", want, u.Port(), s.got)
		default:
			*to = u.Scheme + "://" + strings.ToLower(u.Host)
		}
	}
}
