package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"basegate/proxy/http1/server"
)

// serveTLS serves the handler with the certificate of httptest, and returns the address and the configuration of a client.
func serveTLS(t *testing.T, s *http.Server) (address string, config *tls.Config) {
	t.Helper()
	source := httptest.NewTLSServer(nil)
	certificate := source.TLS.Certificates[0]
	config = source.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName = "example.com"
	source.Close()
	listener := listen(t)
	ended := make(chan error, 1)
	get := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil }
	go func() { ended <- server.ServeTLS(context.Background(), s, listener, get) }()
	t.Cleanup(func() {
		s.Close()
		if err := receive(t, "ServeTLS returns", ended); err != http.ErrServerClosed { //nolint:errorlint // documented to be equal
			t.Errorf("ServeTLS returned %v, want %v", err, http.ErrServerClosed)
		}
	})
	return listener.Addr().String(), config
}

func dialTLS(t *testing.T, address string, config *tls.Config) *tls.Conn {
	t.Helper()
	c := tls.Client(dial(t, address), config)
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestHeadsAreCheckedOverTLS(t *testing.T) {
	address, config := serveTLS(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			t.Error("the request has no TLS state")
		}
		echo(w, r)
	})})
	for _, before := range []int{0, 1, 2} {
		c := dialTLS(t, address, config)
		reader := bufio.NewReader(c)
		for range before {
			io.WriteString(c, post("hello"))
			got, err := http.ReadResponse(reader, nil)
			if err != nil || got.StatusCode != http.StatusOK {
				t.Fatalf("got %v, error %v, want status 200", got, err)
			}
			io.Copy(io.Discard, got.Body)
		}
		io.WriteString(c, post("hello", "X: a\n")+post("hidden"))
		rest, err := io.ReadAll(reader)
		if !strings.HasPrefix(string(rest), "HTTP/1.1 400 ") || strings.Count(string(rest), "HTTP/1.1") != 1 {
			t.Errorf("after %d requests: got %q, error %v, want status 400 alone", before, rest, err)
		}
	}
}

func TestHTTP2OverTLS(t *testing.T) {
	address, config := serveTLS(t, &http.Server{Handler: http.HandlerFunc(echo)})
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	for range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+path, strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		if got.ProtoMajor != 2 || got.StatusCode != http.StatusOK {
			t.Errorf("got %s %s, want HTTP/2 and status 200", got.Proto, got.Status)
		}
	}
}

func TestPlainHTTPOverTLSGetsAnExplanation(t *testing.T) {
	address, _ := serveTLS(t, &http.Server{Handler: http.HandlerFunc(echo)})
	c := dial(t, address)
	c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if got := c.readToEnd(); !strings.HasPrefix(got, "HTTP/1.0 400 ") || !strings.Contains(got, "HTTPS") {
		t.Errorf("got %q, want status 400 that names HTTPS", got)
	}
}

func TestStalledHandshakeTimesOutAndBlocksNobody(t *testing.T) {
	t.Parallel() // it waits
	address, config := serveTLS(t, &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: 4 * time.Second})
	stalled := dial(t, address)
	stalled.send("\x16\x03\x01")
	c := dialTLS(t, address, config)
	io.WriteString(c, post("hello"))
	if got, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || got.StatusCode != http.StatusOK {
		t.Errorf("beside the stalled client: got %v, error %v, want status 200", got, err)
	}
	stalled.readToEnd()
}

func TestShutdownEndsStalledHandshakes(t *testing.T) {
	s := &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: time.Hour}
	address, config := serveTLS(t, s)
	stalled := dial(t, address)
	stalled.send("\x16")
	dialTLS(t, address, config).Close() // the stalled connection has been accepted before this one
	if err := s.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	stalled.readToEnd()
}
