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

const (
	wantNetwork   = "a network such as 10.0.0.0/8 or fd00::/8"
	wantOrigin    = "an origin such as https://lab.example.org, without a path"
	wantServer    = "http:// or https:// with a host, and at most a path prefix"
	wantCollector = "http://, https://, grpc:// or grpcs:// with a host, or nothing"
	wantIssuer    = "https:// with a host, or http:// on this machine"
	wantWebhook   = "http:// or https:// with a host, or nothing"
	wantTarget    = "the path of a file, or http:// or https:// with a host, or nothing"
)

// parseAddress checks a listen address, host:port. An empty host means every address, port 0 any free port.
func parseAddress(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err == nil && strings.Contains(host, "*") {
		return "", fmt.Errorf("host:port; to listen on every address, leave the host out: %q", ":"+port)
	}
	if !isPort(port, 0) || err != nil || strings.ContainsAny(host, " /@") {
		return "", errors.New("host:port such as 127.0.0.1:8080, with a port from 0 to 65535")
	}
	return s, nil
}

func isPort(text string, minimum uint64) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n >= minimum
}

func isHost(s string) bool { return s != "" && isPrintable(s) && !strings.ContainsAny(s, ":/@?#[]*") }

var errPort = errors.New("a port is from 1 to 65535")

// parseServerURL parses the URL of a server: scheme, host and an optional path. It returns the URL with most errors, too.
func parseServerURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || strings.ContainsAny(text, " \t\r\n"):
		return nil, errors.New("this is not a URL")
	case u.User != nil:
		return u, errors.New("no user name and no password")
	case u.Scheme != "http" && u.Scheme != "https":
		return u, errors.New("this is neither")
	case u.Hostname() == "":
		return u, errors.New("the host is missing")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(text, "#"):
		return u, errors.New("no query and no fragment")
	case u.Port() != "" && !isPort(u.Port(), 1):
		return u, errPort
	}
	return u, nil
}

// parseExactServer parses the URL of a server as it is written.
func parseExactServer(s *scalar, text, want string) (*url.URL, error) {
	u, err := parseServerURL(text)
	if err == nil {
		return u, nil
	}
	if u != nil && u.User != nil {
		s.got = ""
	}
	return nil, s.unwanted(fmt.Sprintf("%s; %v", want, err))
}

func parseServer(s *scalar) (any, error) { return parseBase(s, s.text, wantServer) }

// parseBase returns the URL of a server without trailing slashes, so that paths can be appended.
func parseBase(s *scalar, text, want string) (any, error) {
	u, err := parseExactServer(s, text, want)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return u, nil
}

// parsePublicURL parses the URL of the gateway, which serves at the root of a host: links of the console have no prefix.
func parsePublicURL(s *scalar) (any, error) {
	parsed, err := parseServer(s)
	if u, ok := parsed.(*url.URL); ok && u.Path != "" {
		root := url.URL{Scheme: u.Scheme, Host: u.Host}
		err = fmt.Errorf("want a URL without a path, such as %s: the gateway is served at the root of a host, got %q", &root, u)
	}
	return parsed, err
}

// parseIssuer parses the URL of an identity provider. It is compared exactly, its trailing slash included.
func parseIssuer(s *scalar) (any, error) {
	u, err := parseExactServer(s, s.text, wantServer)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "https" && !IsLoopback(u.Hostname()) {
		err = s.unwanted(wantIssuer)
	}
	return u, err
}

// IsLoopback reports whether a host is this machine.
func IsLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// parseWebhook parses the URL of a webhook, which often contains a secret.
func parseWebhook(s *scalar) (any, error) {
	u, err := url.Parse(s.text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		s.got = ""
		return nil, s.unwanted(wantWebhook)
	}
	s.secret = true
	return u, nil
}

// parseTarget checks the path of a file or the URL of a webhook.
func parseTarget(s *scalar) (any, error) {
	if !strings.Contains(s.text, "://") {
		if strings.ContainsRune(s.text, 0) || strings.HasSuffix(s.text, "/") {
			return nil, errUnwanted
		}
		return s.text, nil
	}
	parsed, err := parseWebhook(s)
	if u, ok := parsed.(*url.URL); ok {
		return u.String(), nil
	}
	return nil, err
}

// parseNetwork parses a CIDR prefix.
func parseNetwork(s *scalar) (any, error) {
	prefix, err := netip.ParsePrefix(s.text)
	switch {
	case err != nil:
		return nil, errUnwanted
	case prefix != prefix.Masked():
		return nil, s.unwanted(wantNetwork + " with the bits after the prefix all 0")
	}
	return prefix, nil
}

// parseOrigin parses the origin of a web page as browsers send it: scheme, host and a port that is not the scheme's own.
func parseOrigin(s *scalar) (any, error) {
	u, err := parseServerURL(s.text)
	switch {
	case err != nil || u.Path != "" || strings.HasSuffix(s.text, "/"):
		return nil, errUnwanted
	case u.Scheme == "https" && u.Port() == "443", u.Scheme == "http" && u.Port() == "80":
		return nil, s.unwanted(fmt.Sprintf("%s; browsers leave out the port %s", wantOrigin, u.Port()))
	}
	return u.Scheme + "://" + strings.ToLower(u.Host), nil
}

// parseCollector parses the URL of an OpenTelemetry collector, which has the scheme grpc or grpcs for OTLP over gRPC.
func parseCollector(s *scalar) (any, error) {
	rest, isGRPC := strings.CutPrefix(s.text, "grpc")
	if !isGRPC {
		return parseBase(s, s.text, wantCollector)
	}
	parsed, err := parseBase(s, "http"+rest, wantCollector)
	if u, ok := parsed.(*url.URL); ok {
		u.Scheme = "grpc" + strings.TrimPrefix(u.Scheme, "http")
	}
	return parsed, err
}
