package server_test

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkRequest compares with net/http's server. The client costs the same in both: it only writes and reads bytes.
func BenchmarkRequest(b *testing.B) {
	responseBody := []byte(strings.Repeat("x", 500))
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body [1 << 10]byte
		if _, err := io.ReadFull(r.Body, body[:]); err != nil {
			b.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(responseBody)))
		w.Write(responseBody)
	})
	b.Run("fast path", func(b *testing.B) {
		benchmark(b, serve(b, listen(b), &http.Server{Handler: handler}).address)
	})
	b.Run("net/http", func(b *testing.B) {
		listener, server := listen(b), &http.Server{Handler: handler}
		defer server.Close()
		go server.Serve(listener)
		benchmark(b, listener.Addr().String())
	})
}

func benchmark(b *testing.B, address string) {
	b.Helper()
	c, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", address)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	request := []byte(post(strings.Repeat("x", 1<<10), "Authorization: Bearer x\r\n", "Content-Type: application/json\r\n", "User-Agent: bench\r\n"))
	received := make([]byte, 4<<10)
	c.Write(request)
	n, err := io.ReadAtLeast(c, received, 500)
	for err == nil && !strings.HasSuffix(string(received[:n]), strings.Repeat("x", 500)) {
		var more int
		more, err = c.Read(received[n:])
		n += more
	}
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() { // each response is as long as the first
		c.Write(request)
		if _, err := io.ReadFull(c, received[:n]); err != nil {
			b.Fatal(err)
		}
	}
}
