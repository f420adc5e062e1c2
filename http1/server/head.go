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

// errOther is a request that net/http is to answer.
var errOther = errors.New("not a request of the one plain form")

// headSize is what a head may have, in bytes, its end included: one that is longer is net/http's. What comes is read into
// buffers of this size.
const headSize = 4 << 10

var (
	headEnd = []byte("\r\n\r\n")
	lineEnd = []byte("\r\n")
)

// requestLine is how every request of path begins.
func requestLine(path string) string { return "POST " + path + " HTTP/1.1\r\n" }

// head is what a head says.
type head struct {
	host   string
	length int64 // of the body, in bytes
	close  bool  // the client wants no further request answered
	header http.Header
}

// parseHead reads the lines behind the first one, with the empty one at their end. It takes nothing but what everybody
// reads the same way: what a proxy in front could read otherwise than net/http, net/http is left to refuse.
func parseHead(lines []byte) (h head, err error) {
	count := bytes.Count(lines, lineEnd) - 1
	text, values := string(lines), make([]string, 0, max(count, 0))
	h = head{length: -1, header: make(http.Header, max(count, 0))}
	for {
		line, rest, found := strings.Cut(text, "\r\n")
		if !found {
			return h, errOther
		}
		text = rest
		if line == "" {
			break
		}
		name, value, ok := parseField(line)
		if !ok {
			return h, errOther
		}
		if err := h.take(name, value); err != nil {
			return h, err
		}
		if name == "Host" {
			continue // as net/http does
		}
		values = append(values, value)
		if before, there := h.header[name]; there {
			h.header[name] = append(before, value)
		} else {
			h.header[name] = values[len(values)-1 : len(values) : len(values)]
		}
	}
	if text != "" || h.host == "" || h.length < 0 {
		return h, errOther
	}
	return h, nil
}

// parseField reads a line. Its name comes in the canonical form.
func parseField(line string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(line, ":")
	if !ok || name == "" || strings.ContainsFunc(name, notInName) {
		return "", "", false
	}
	value = strings.Trim(value, " \t")
	return textproto.CanonicalMIMEHeaderKey(name), value, httpguts.ValidHeaderFieldValue(value)
}

// notInName tells what is not of RFC 9110's tokens. Those of its marks that nobody uses count in.
func notInName(r rune) bool {
	letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
	return !letter && (r < '0' || r > '9') && r != '-' && r != '_'
}

// take heeds the fields that say how the request is to be read, and leaves it to net/http where one says more than this
// server knows.
func (h *head) take(name, value string) error {
	switch name {
	case "Host":
		if h.host != "" || value == "" || strings.ContainsFunc(value, notInHost) {
			return errOther
		}
		h.host = value
	case "Content-Length":
		n, err := strconv.ParseUint(value, 10, 62)
		if h.length >= 0 || err != nil {
			return errOther
		}
		h.length = int64(n)
	case "Connection":
		switch {
		case strings.EqualFold(value, "close"):
			h.close = true
		case !strings.EqualFold(value, "keep-alive"):
			return errOther
		}
	case "Transfer-Encoding", "Trailer", "Te", "Expect", "Upgrade", "Pragma", "Proxy-Connection":
		return errOther
	}
	return nil
}

func notInHost(r rune) bool { return notInName(r) && r != '.' && r != ':' && r != '[' && r != ']' }
