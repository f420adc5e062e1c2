package server

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const testPath = "/v1/completions"

// The lines after the request line of heads that the fast path accepts, and of those that it leaves to net/http.
// Whatever two servers could read differently is among the latter, even if net/http would read it in the same way.
var (
	acceptedHeads = []string{
		"Host: a\r\nContent-Length: 2\r\n\r\n",
		"Host: gate.example:8080\r\nUser-Agent: curl/8\r\nAccept: */*\r\nAuthorization: Bearer x\r\nContent-Length: 30\r\n\r\n",
		"host: a\r\ncontent-length: 2\r\nx-test: b\r\n\r\n", "HOST: [::1]:80\r\nCONTENT-LENGTH: 007\r\nCONNECTION: Keep-Alive\r\n\r\n",
		"Host: a\r\nConnection: close\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\nX: 1\r\nY: 2\r\nX: 3\r\nx: 4\r\nY:\r\nX:  5 \t\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\nX: grüß\xff\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nX_y-Z9: a:b: c\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\nX: " + strings.Repeat("x", 8<<10) + "\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\n" + strings.Repeat("X: y\r\n", 1000) + "\r\n",
	}
	rejectedHeads = []string{
		"Host: a\r\nConnection: close, x\r\nContent-Length: 0\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
		"Host: a\r\nContent-Length: +2\r\n\r\n", "Host: a\r\nContent-Length: 2 2\r\n\r\n", "Host: a\r\nContent-Length: 0x2\r\n\r\n",
		"Host: a\r\nContent-Length: -1\r\n\r\n", "Host: a\r\nContent-Length:\r\n\r\n", "Host: a\r\nContent-Length: 2,2\r\n\r\n",
		"Host: a\r\nContent-Length: 4611686018427387904\r\n\r\n", "Host: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\nTransfer-Encoding : chunked\r\n\r\n", "Host: a\r\nContent-Length: 2\r\n Transfer-Encoding: chunked\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\nX: a\nTransfer-Encoding: chunked\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\nX: folded\r\n more\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nX: folded\r\n\tmore\r\n\r\n",
		" Host: a\r\nContent-Length: 2\r\n\r\n", "Host: a\nContent-Length: 2\n\n\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nX: a\x00b\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\nX\x00: a\r\n\r\n", "Host : a\r\nContent-Length: 2\r\n\r\n", "Host: a\r\nContent-Length : 2\r\n\r\n",
		"Content-Length: 2\r\n\r\n", "Host:\r\nContent-Length: 2\r\n\r\n", "Host: a\r\nHost: a\r\nContent-Length: 2\r\n\r\n",
		"Host: a\r\nHost:\r\nContent-Length: 2\r\n\r\n", "Host: a b\r\nContent-Length: 2\r\n\r\n", "Host: a/b\r\nContent-Length: 2\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\nÜ: a\r\n\r\n", "Host: a\r\nContent-Length: 2\r\n: a\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nno colon\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\n!#$: a\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nX: \x7f\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nTrailer: X\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n", "Host: a\r\nContent-Length: 2\r\nPragma: no-cache\r\n\r\n",
		"Host: a\r\nContent-Length: 2\r\n\r\nrest\r\n\r\n", "Host: a\r\n\r\n", "Host: a\r\nContent-Length: 2\r\n", "\r\n", "\r\n\r\n", "\n\n", "",
	}
)

// compareWithNetHTTP returns an error if net/http rejects an accepted head or reads it differently.
func compareWithNetHTTP(lines []byte, got head) error {
	want, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(append([]byte(requestLine(testPath)), lines...))))
	if err != nil {
		return fmt.Errorf("net/http rejects it: %w", err)
	}
	if got.host != want.Host || got.length != want.ContentLength || got.close != want.Close || len(want.TransferEncoding) > 0 {
		return fmt.Errorf("got %+v, want host %q, length %d, close %t, encoding %q", got, want.Host, want.ContentLength, want.Close, want.TransferEncoding)
	}
	if d := cmp.Diff(want.Header, got.header); d != "" {
		return errors.New("headers (-want +got): " + d)
	}
	return nil
}

// FuzzHead checks that net/http accepts every accepted head and reads it in the same way: no request can be smuggled
// past one of the two parsers.
func FuzzHead(f *testing.F) {
	for _, text := range slices.Concat(acceptedHeads, rejectedHeads) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, lines []byte) {
		got, err := parseHead(lines)
		if err != nil {
			if !errors.Is(err, errFallback) {
				t.Fatalf("%q: got error %v, want %v", lines, err, errFallback)
			}
			return
		}
		if err := compareWithNetHTTP(lines, got); err != nil {
			t.Fatalf("%q: %v", lines, err)
		}
	})
}

// The fast path must serve what common clients send.
func TestHeadsOfCommonClientsAreAccepted(t *testing.T) {
	for client, lines := range map[string]string{
		"curl":            "Host: 127.0.0.1:8000\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\nContent-Type: application/json\r\nAuthorization: Bearer sk-x\r\nContent-Length: 50\r\n\r\n",
		"the openai SDK":  "Host: gate:8000\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 1.99\r\nX-Stainless-Async: false\r\nAuthorization: Bearer sk-x\r\nX-Stainless-Read-Timeout: 600\r\nContent-Length: 50\r\n\r\n",
		"aiohttp":         "Host: gate:8000\r\nAuthorization: Bearer sk-x\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate, br\r\nUser-Agent: Python/3.12 aiohttp/3.9\r\nContent-Length: 50\r\nContent-Type: application/json\r\n\r\n",
		"undici":          "host: gate:8000\r\nconnection: keep-alive\r\ncontent-type: application/json\r\naccept: */*\r\naccept-language: *\r\nsec-fetch-mode: cors\r\nuser-agent: node\r\naccept-encoding: gzip, deflate\r\ncontent-length: 50\r\n\r\n",
		"Go":              "Host: gate:8000\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: 50\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n",
		"nginx, upstream": "Host: backend\r\nConnection: close\r\nContent-Length: 50\r\nX-Forwarded-For: 10.0.0.1, 10.0.0.2\r\n\r\n",
	} {
		t.Run(client, func(t *testing.T) {
			got, err := parseHead([]byte(lines))
			if err == nil {
				err = compareWithNetHTTP([]byte(lines), got)
			}
			if err != nil || got.length != 50 {
				t.Errorf("got length %d, error %v, want length 50", got.length, err)
			}
		})
	}
}

func TestOnlyUnambiguousHeadsAreAccepted(t *testing.T) {
	for _, lines := range rejectedHeads {
		if got, err := parseHead([]byte(lines)); !errors.Is(err, errFallback) {
			t.Errorf("%q: got %+v, error %v, want %v", lines, got, err, errFallback)
		}
	}
	for _, lines := range acceptedHeads {
		if _, err := parseHead([]byte(lines)); err != nil {
			t.Errorf("%q: got error %v, want the head accepted", lines, err)
		}
	}
}

func TestRouteIsKnownOnceItsLineIsComplete(t *testing.T) {
	paths := []string{"/v1/completions", "/v1/chat/completions"}
	routes := newRoutes(paths)
	for i, path := range paths {
		line := requestLine(path)
		for n := range len(line) {
			if got, err := findRoute(routes, []byte(line[:n])); got != nil || err != nil {
				t.Errorf("%q: got %v, error %v, want neither", line[:n], got, err)
			}
			if wrong := line[:n] + "\x01"; n > 0 {
				if got, err := findRoute(routes, []byte(wrong)); got != nil || !errors.Is(err, errFallback) {
					t.Errorf("%q: got %v, error %v, want %v", wrong, got, err, errFallback)
				}
			}
		}
		for _, rest := range []string{"", "Host: a\r\n"} {
			if got, err := findRoute(routes, []byte(line+rest)); got != &routes[i] || err != nil {
				t.Errorf("%q: got %v, error %v, want the route of %s", line+rest, got, err, path)
			}
		}
	}
}
