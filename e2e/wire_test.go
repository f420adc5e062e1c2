//go:build e2e

package e2e_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"basegate/mockvllm"
)

// wireTarget is one listener of a gateway, in one way of serving.
type wireTarget struct {
	name string
	*gateway
	address string
	tls     *tls.Config // nil: without TLS
	path    string      // of a GET that the listener answers with 200
	post    bool        // it serves completions
}

// wireTargets starts a gateway in each way of serving HTTP/1 and returns their listeners.
func wireTargets(t *testing.T) []wireTarget {
	t.Helper()
	cert, key, roots := certificate(t)
	mock := startMock(t, mockvllm.Options{})
	start := func(server string) *gateway {
		return newEnvironment(t, settings{server: server}, mock.URL()).serve()
	}
	fast, standard, secured := start(""), start(", fast_path: false"), start(fmt.Sprintf(", tls: {cert: %q, key: %q}", cert, key))
	host := func(url string) string { return strings.TrimPrefix(url, "http://") }
	return []wireTarget{
		{"fast path", fast, host(fast.url), nil, "/healthz", true},
		{"net/http", standard, host(standard.url), nil, "/healthz", true},
		{"TLS", secured, host(secured.url), &tls.Config{RootCAs: roots}, "/healthz", true},
		{"admin", fast, host(fast.admin), nil, "/metrics", false},
	}
}

// dial connects to the listener.
func (w *wireTarget) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", w.address, waitTimeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(waitTimeout))
	if w.tls != nil {
		return tls.Client(conn, &tls.Config{RootCAs: w.tls.RootCAs, ServerName: "127.0.0.1"})
	}
	return conn
}

// exchange sends each text as one write on one connection, waits for a response after each but the last, and returns the
// statuses of all responses, as readStatuses does.
func (w *wireTarget) exchange(t *testing.T, texts ...string) string {
	t.Helper()
	conn := w.dial(t)
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for _, text := range texts[:len(texts)-1] {
		io.WriteString(conn, text)
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatalf("response before the last: %v", err)
		}
		io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("response before the last: got status %d, want 200", resp.StatusCode)
		}
	}
	go io.WriteString(conn, texts[len(texts)-1]) // the gateway may respond and close before it has read everything
	return readStatuses(reader)
}

// malformedHeads are requests whose head is not what RFC 9112 requires, after a request line and a first field. Each hides
// a request behind it.
func malformedHeads(line, field string) map[string]string {
	rest := field + "\r\n"
	return map[string]string{
		"bare LF after the request line":       line + "\n" + rest + "\r\n",
		"bare LF after a field":                line + "\r\n" + field + "\nX: y\r\n\r\n",
		"bare LF after the last field":         line + "\r\n" + field + "\n\r\n",
		"bare LF as the empty line":            line + "\r\n" + rest + "\n",
		"bare LF everywhere":                   line + "\n" + field + "\n\n",
		"LF CR":                                line + "\r\n" + field + "\n\r" + "X: y\r\n\r\n",
		"folded by a space":                    line + "\r\n" + rest + "X: a\r\n b\r\n\r\n",
		"folded by a tab":                      line + "\r\n" + rest + "X: a\r\n\tb\r\n\r\n",
		"folded into an empty line":            line + "\r\n" + rest + "X: a\r\n \r\n\r\n",
		"folded last field":                    line + "\r\n" + rest + " b\r\n\r\n",
		"folded empty value":                   line + "\r\n" + rest + "X:\r\n b\r\n\r\n",
		"folded length":                        line + "\r\n" + rest + "Content-Length:\r\n 0\r\n\r\n",
		"a space before the first field":       line + "\r\n " + rest + "\r\n",
		"a tab before the first field":         line + "\r\n\t" + rest + "\r\n",
		"an empty line with a space":           line + "\r\n" + rest + " \r\n\r\n",
		"bare CR in the request line":          line + "\r" + rest + "\r\n",
		"bare CR in a value":                   line + "\r\n" + rest + "X: a\rb\r\n\r\n",
		"bare CR after a field":                line + "\r\n" + rest + "X: a\r\r\n\r\n",
		"bare CR before a field":               line + "\r\n" + rest + "\rX: a\r\n\r\n",
		"bare CR in the empty line":            line + "\r\n" + rest + "\r\r\n\r\n",
		"NUL in the request line":              line + "\x00\r\n" + rest + "\r\n",
		"NUL in a name":                        line + "\r\n" + rest + "X\x00: a\r\n\r\n",
		"NUL in a value":                       line + "\r\n" + rest + "X: a\x00b\r\n\r\n",
		"a space before the colon":             line + "\r\n" + rest + "X : a\r\n\r\n",
		"a tab before the colon":               line + "\r\n" + rest + "X\t: a\r\n\r\n",
		"a field without a colon":              line + "\r\n" + rest + "X\r\n\r\n",
		"an empty name":                        line + "\r\n" + rest + ": a\r\n\r\n",
		"Transfer-Encoding after a bare LF":    line + "\r\n" + rest + "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"Transfer-Encoding folded":             line + "\r\n" + rest + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
		"a bare LF in a field of 10 KB":        line + "\r\n" + rest + "X: " + strings.Repeat("x", 10<<10) + "\n\r\n\r\n",
		"a bare LF behind fields of 10 KB":     line + "\r\n" + rest + strings.Repeat("Name: value\r\n", 800) + "X: y\n\r\n",
		"folded behind fields of 10 KB":        line + "\r\n" + rest + strings.Repeat("Name: value\r\n", 800) + " y\r\n\r\n",
		"two lines folded into the first line": line + "\r\n X: a\r\n Y: b\r\n" + rest + "\r\n",
	}
}

// RFC 9112 2.2 and 5.2 let a server accept bare LF and folded lines, which a proxy in front may read differently. The
// gateway refuses them, as the first request of a connection, as a later one, and behind another without a pause.
func TestMalformedHeadsAreRefused(t *testing.T) {
	t.Parallel() // it waits
	for _, target := range wireTargets(t) {
		t.Run(target.name, func(t *testing.T) {
			get := "GET " + target.path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
			post := string((&hostileLoad{gateway: target.gateway}).rawPostWithLength("", []byte(smallRequest)))
			for _, first := range []string{"GET " + target.path + " HTTP/1.1", "POST /v1/completions HTTP/1.1"} { // package strict has HTTP/1.0, package server the path of chats
				for name, raw := range malformedHeads(first, "Host: 127.0.0.1") {
					raw += "GET " + target.path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + closing + "\r\n"
					check := func(where, want string, texts ...string) {
						t.Helper()
						if got := target.exchange(t, texts...); got != want {
							t.Errorf("%s, %s, %s: got %q, want %q", first, name, where, got, want)
						}
					}
					check("first", "400 closed", raw)
					check("after a GET", "400 closed", get, raw)
					check("behind a GET", "200 400 closed", get+raw)
					if target.post {
						check("after a completion", "400 closed", post, raw)
						check("after a completion and a GET", "400 closed", post, get, raw)
						check("behind a completion", "200 400 closed", post+raw)
					}
				}
			}
		})
	}
}

// A client that has sent chunks of a wrong form learns why its connection is closed, even if it is still sending.
func TestMalformedChunksAreAnswered(t *testing.T) {
	for _, target := range wireTargets(t) {
		if !target.post {
			continue
		}
		t.Run(target.name, func(t *testing.T) {
			api := string((&hostileLoad{gateway: target.gateway}).rawPost(chunked, ""))
			form := "POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\n" + chunked + "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
			json := "POST /console/api/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n" + chunked + "Content-Type: application/json\r\n\r\n"
			conn := target.dial(t)
			io.WriteString(conn, api+"2\r\n{}}\r\n0\r\n\r\n")
			if got, err := io.ReadAll(conn); err != nil || !strings.Contains(string(got), `"code":"bad_json"`) || !strings.Contains(string(got), "chunked") {
				t.Errorf("got %q, error %v, want code bad_json and a message about chunks", got, err)
			}
			for name, body := range map[string]string{
				"no length":        "{}\r\n",
				"a wrong length":   "2\r\n{}}\r\n0\r\n\r\n",
				"bare LF":          "2\n{}\n0\n\n",
				"after many bytes": fmt.Sprintf("%x\r\n%s\r\nx\r\n%[2]s", 1<<20, strings.Repeat(" ", 1<<20)),
			} {
				for request, want := range map[string]string{api: "400 closed", form: "400 closed", json: "401 closed"} {
					if name == "after many bytes" && request == form {
						want = "413 closed"
					}
					if got := target.exchange(t, request+body+smuggled); got != want {
						t.Errorf("%s, %s: got %q, want %q", name, strings.SplitN(request, "\r\n", 2)[0], got, want)
					}
				}
			}
		})
	}
}
