package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"
)

func TestIdleConnectionsEndAfterTheConfiguredTime(t *testing.T) {
	withAndWithoutFastPath(t, func(t *testing.T, fastPath bool) {
		t.Helper()
		c := newConfig(t, model("m", &url.URL{Scheme: "http", Host: "127.0.0.1:9"}))
		c.Server.FastPath, c.Server.IdleTimeout = fastPath, 50*time.Millisecond
		g := start(t, c)
		for _, r := range []struct {
			address net.Addr
			request string
			status  int
		}{
			{g.Addr(), "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", http.StatusUnauthorized},
			{g.Addr(), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", http.StatusOK},
			{g.AdminAddr(), "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", http.StatusOK},
		} {
			conn, err := net.Dial("tcp", r.address.String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(time.Minute))
			fmt.Fprint(conn, r.request)
			reader := bufio.NewReader(conn)
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != r.status || response.Close {
				t.Fatalf("%.20q: got status %d and error %v, want %d and the connection open", r.request, response.StatusCode, err, r.status)
			}
			if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
				t.Errorf("%.20q: got %q and error %v, want the connection closed", r.request, rest, err)
			}
		}
	})
}
