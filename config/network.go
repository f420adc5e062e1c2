package config

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

var (
	errAddress = errors.New("host:port such as 127.0.0.1:8080, with a port from 0 to 65535")
	errPath    = errors.New("the path of a file")
)

// address reads where to listen: host:port, the host being empty for every address and the port 0 for a free one.
func address(to *string) reader {
	return text(to, func(s string) error {
		host, port, err := net.SplitHostPort(s)
		if err != nil || strings.ContainsAny(host, " /@") {
			return errAddress
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return errAddress
		}
		return nil
	})
}

// file reads a path; optional ones may be empty.
func file(to *string) reader {
	return text(to, func(s string) error {
		if strings.ContainsRune(s, 0) {
			return errPath
		}
		return nil
	})
}

func filledFile(to *string) reader {
	return text(to, func(s string) error {
		if s == "" || strings.ContainsRune(s, 0) {
			return errPath
		}
		return nil
	})
}

// address of a server: scheme and host, and perhaps a path that everything stands under.
func serverURL(to **url.URL) reader {
	const want = "http:// or https:// with a host, and at most a path prefix"
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		u, problem := parseServerURL(s.text)
		switch {
		case problem == "":
			*to = u
		case u != nil && u.User != nil:
			v.complain("want %s; %s", want, problem) // and no word of the password
		default:
			v.complain("want %s; %s, got %s", want, problem, s.got)
		}
	}
}

// parseServerURL says what is wrong, or nothing; without slashes at the end, so that paths can be put after it.
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

// webhook reads an address to send to; empty is none. Such addresses are secrets often enough, so none is repeated.
func webhook(to **url.URL) reader {
	const want = "http:// or https:// with a host, or nothing"
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok || s.text == "" {
			return
		}
		u, err := url.Parse(s.text)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
			v.complain("want %s", want)
			return
		}
		*to = u
	}
}

// network reads a CIDR.
func network(to *netip.Prefix) reader {
	const want = "a network such as 10.0.0.0/8 or fd00::/8"
	return func(v value) {
		s, ok := v.scalar(want)
		if !ok {
			return
		}
		prefix, err := netip.ParsePrefix(s.text)
		switch {
		case err != nil:
			v.complain("want %s, got %s", want, s.got)
		case prefix != prefix.Masked():
			v.complain("want %s with the bits after the prefix all 0, got %s", want, s.got)
		default:
			*to = prefix
		}
	}
}
