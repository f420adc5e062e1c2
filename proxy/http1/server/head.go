package server

import (
	"bytes"
	"errors"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// errFallback reports that net/http must serve the request.
var errFallback = errors.New("not a plain POST: net/http serves it")

// headSize limits a request head, and is the size of the buffers that it is read into, in bytes; net/http serves longer ones.
const headSize = 4 << 10

var (
	headEnd = []byte("\r\n\r\n")
	lineEnd = []byte("\r\n")
)

// route is a path that the fast path serves.
type route struct {
	path        string
	requestLine string // of every plain POST of path, with its line break
}

func newRoutes(paths []string) []route {
	routes := make([]route, len(paths))
	for i, path := range paths {
		routes[i] = route{path, requestLine(path)}
	}
	return routes
}

func requestLine(path string) string { return "POST " + path + " HTTP/1.1\r\n" }

// findRoute returns the route of a request that begins with read, and nil if more bytes are needed. It returns
// errFallback if the request is no plain POST of any route.
func findRoute(routes []route, read []byte) (*route, error) {
	err := errFallback
	for i := range routes {
		line := routes[i].requestLine
		switch n := min(len(line), len(read)); {
		case string(read[:n]) != line[:n]:
		case n == len(line):
			return &routes[i], nil
		default:
			err = nil
		}
	}
	return nil, err
}

// head is a parsed request head.
type head struct {
	host   string
	length int64 // of the body, in bytes
	close  bool  // the client sends no further request on the connection
	header http.Header
}

// parseHead parses the lines after the request line, including the empty last one. It accepts only what every HTTP
// parser reads in the same way: what a proxy in front might read differently is left to net/http to reject.
func parseHead(lines []byte) (h head, err error) {
	count := bytes.Count(lines, lineEnd) - 1
	text, values := string(lines), make([]string, 0, max(count, 0))
	h = head{length: -1, header: make(http.Header, max(count, 0))}
	for {
		line, rest, found := strings.Cut(text, "\r\n")
		if !found {
			return h, errFallback
		}
		text = rest
		if line == "" {
			break
		}
		name, value, ok := parseField(line)
		if !ok {
			return h, errFallback
		}
		if err := h.apply(name, value); err != nil {
			return h, err
		}
		if name == "Host" {
			continue // net/http leaves it out of the header too
		}
		values = append(values, value)
		if previous, ok := h.header[name]; ok {
			h.header[name] = append(previous, value)
		} else {
			h.header[name] = values[len(values)-1 : len(values) : len(values)]
		}
	}
	if text != "" || h.host == "" || h.length < 0 {
		return h, errFallback
	}
	return h, nil
}

// parseField parses one header line. It returns the name in its canonical form.
func parseField(line string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(line, ":")
	if !ok || name == "" || strings.ContainsFunc(name, invalidInName) {
		return "", "", false
	}
	value = strings.Trim(value, " \t")
	return textproto.CanonicalMIMEHeaderKey(name), value, httpguts.ValidHeaderFieldValue(value)
}

// invalidInName returns whether a field name with r is left to net/http. RFC 9110 allows some more punctuation, which
// ordinary clients do not use.
func invalidInName(r rune) bool {
	letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
	return !letter && (r < '0' || r > '9') && r != '-' && r != '_'
}

// apply evaluates the fields that say how to read the request: errFallback for those that only net/http implements.
func (h *head) apply(name, value string) error {
	switch name {
	case "Host":
		if h.host != "" || value == "" || strings.ContainsFunc(value, invalidInHost) {
			return errFallback
		}
		h.host = value
	case "Content-Length":
		n, err := strconv.ParseUint(value, 10, 62)
		if h.length >= 0 || err != nil {
			return errFallback
		}
		h.length = int64(n)
	case "Connection":
		switch {
		case strings.EqualFold(value, "close"):
			h.close = true
		case !strings.EqualFold(value, "keep-alive"):
			return errFallback
		}
	case "Transfer-Encoding", "Trailer", "Te", "Expect", "Upgrade", "Pragma", "Proxy-Connection":
		return errFallback
	}
	return nil
}

func invalidInHost(r rune) bool {
	return invalidInName(r) && r != '.' && r != ':' && r != '[' && r != ']'
}
