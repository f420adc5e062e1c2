package client_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"basegate/proxy/http1/client"
)

// heldConn collects what is written while held is not nil.
type heldConn struct {
	net.Conn
	held *bytes.Buffer
}

func (c *heldConn) Write(p []byte) (int, error) {
	if c.held != nil {
		return c.held.Write(p)
	}
	return c.Conn.Write(p)
}

// twiceConn is a backend's connection, on which it sends two responses to each request.
type twiceConn struct {
	net.Conn           // with TLS, if the test uses it
	socket   *heldConn // below TLS
	reader   *bufio.Reader
	pooled   chan struct{} // receives when the client has read the first response
	resume   chan struct{} // receives when the second one has been sent
}

// encode returns the bytes on the socket for text.
func (c *twiceConn) encode(text string) []byte {
	c.socket.held = new(bytes.Buffer)
	defer func() { c.socket.held = nil }()
	io.WriteString(c, text)
	return c.socket.held.Bytes()
}

// deliveries are the times at which the second of two responses arrives. A delivery returns what it still has to send.
var deliveries = map[string]func(c *twiceConn, first, second string) (rest []byte){
	"in the same record": func(c *twiceConn, first, second string) []byte {
		c.socket.Write(c.encode(first + second))
		return nil
	},
	"in the same segment": func(c *twiceConn, first, second string) []byte {
		c.socket.Write(append(c.encode(first), c.encode(second)...))
		return nil
	},
	"behind pieces": func(c *twiceConn, first, second string) []byte {
		for len(first) > 100 {
			io.WriteString(c, first[:100])
			first = first[100:]
		}
		c.socket.Write(c.encode(first + second))
		return nil
	},
	"in the pool": func(c *twiceConn, first, second string) []byte {
		io.WriteString(c, first)
		<-c.pooled
		io.WriteString(c, second)
		c.resume <- struct{}{}
		return nil
	},
	"half of it in the same segment": func(c *twiceConn, first, second string) []byte {
		before, encoded := c.encode(first), c.encode(second)
		c.socket.Write(append(before, encoded[:len(encoded)/2]...))
		return encoded[len(encoded)/2:]
	},
	"one byte of it in the same segment": func(c *twiceConn, first, second string) []byte {
		before, encoded := c.encode(first), c.encode(second)
		c.socket.Write(append(before, encoded[0]))
		return encoded[1:]
	},
	"half of it in the pool": func(c *twiceConn, first, second string) []byte {
		io.WriteString(c, first)
		encoded := c.encode(second)
		<-c.pooled
		c.socket.Write(encoded[:len(encoded)/2])
		c.resume <- struct{}{}
		return encoded[len(encoded)/2:]
	},
}

// serve sends two responses to each request of a connection. If a part of the second response is left, the backend sends it as
// soon as the client uses the connection again.
func (c *twiceConn) serve(response func(body string) (first, second string), deliver func(c *twiceConn, first, second string) []byte) {
	c.reader = bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(c.reader)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		first, second := response(string(body))
		rest := deliver(c, first, second)
		if _, err := c.reader.Peek(1); err != nil {
			return
		}
		c.socket.Write(rest)
	}
}

func withLength(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %05d\r\n\r\n%s", len(body), body)
}

func inChunks(body string) string {
	var b strings.Builder
	b.WriteString("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	for len(body) > 0 {
		n := min(len(body), 700)
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	return b.String() + "0\r\n\r\n"
}

// doubleResponses are what a backend sends for a request, as a response and what comes behind it. The body of the
// response is that of the request.
var doubleResponses = map[string]func(body string) (first, second string){
	"with a length":       func(body string) (string, string) { return withLength(body), withLength("again " + body) },
	"in chunks":           func(body string) (string, string) { return inChunks(body), inChunks("again " + body) },
	"a longer body":       func(body string) (string, string) { return withLength(body), "again " + withLength(body) },
	"a trailer too many":  func(body string) (string, string) { return inChunks(body), "X: y\r\n\r\n" },
	"an interim response": func(body string) (string, string) { return withLength(body), "HTTP/1.1 103 Early Hints\r\n\r\n" },
	"behind an interim one": func(body string) (string, string) {
		return "HTTP/1.1 100 Continue\r\n\r\n" + withLength(body), withLength("again " + body)
	},
	"a line break":   func(body string) (string, string) { return withLength(body), "\r\n" },
	"another length": func(body string) (string, string) { return withLength(body), withLength("") },
	"an error behind a success": func(body string) (string, string) {
		return inChunks(body), "HTTP/1.1 500 No\r\nContent-Length: 5\r\n\r\nagain"
	},
}

// What a backend sends behind a response must never be taken for the response to the next request, which may be another
// client's.
func TestSecondResponseReachesNobody(t *testing.T) {
	source := httptest.NewTLSServer(nil)
	defer source.Close()
	trusted := source.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	trusted.ServerName = "example.com"
	for _, secured := range []bool{false, true} {
		for when, deliver := range deliveries {
			for what, response := range doubleResponses {
				t.Run(fmt.Sprintf("TLS %t, %s, %s", secured, what, when), func(t *testing.T) {
					pooled, resume := make(chan struct{}), make(chan struct{})
					address := serveRaw(t, func(accepted net.Conn) {
						c := &twiceConn{socket: &heldConn{Conn: accepted}, pooled: pooled, resume: resume}
						c.Conn = c.socket
						if secured {
							c.Conn = tls.Server(c.socket, &tls.Config{
								Certificates: source.TLS.Certificates, DynamicRecordSizingDisabled: true,
							})
						}
						c.serve(response, deliver)
					})
					if secured {
						address = strings.Replace(address, "http:", "https:", 1)
					}
					transport := newTransport(t, func(s *client.Settings) { s.TLS = trusted })
					defer transport.CloseIdleConnections() // before the backend waits for its connections
					head := len(withLength(""))
					for i, size := range []int{10, 4096 - head, 100, 8192 - head, 5000, 16384 - head, 10} {
						secret := fmt.Sprintf("%d: %s", i, strings.Repeat(string(rune('a'+i)), size-3))
						if got := post(t, transport, address, secret); got != secret {
							t.Fatalf("request %d, of %d bytes: got the body %.40q, want its own", i, size, got)
						}
						if strings.HasSuffix(when, "in the pool") {
							pooled <- struct{}{}
							<-resume
						}
					}
				})
			}
		}
	}
}
