package fleet_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/poll"
	"basegate/proxy/http1/client"
)

// serveOncePerConnection answers the first request of each connection as handler does, without announcing that it will
// close the connection. It closes it when the next request arrives, as if that had crossed the close of an idle connection.
func serveOncePerConnection(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serveOnce(c, handler) })
		}
	})
	t.Cleanup(func() { listener.Close(); all.Wait() })
	return "http://" + listener.Addr().String()
}

func serveOnce(c net.Conn, handler http.Handler) {
	defer c.Close()
	reader := bufio.NewReader(c)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	io.Copy(io.Discard, request.Body)
	recorded := httptest.NewRecorder()
	handler.ServeHTTP(recorded, request)
	response := recorded.Result()
	response.ContentLength = int64(recorded.Body.Len())
	response.Write(c)
	reader.ReadByte()
}

func TestBackendThatClosesIdleConnectionsStaysReady(t *testing.T) {
	var probes atomic.Int64
	server := newServer(t, 100)
	address := serveOncePerConnection(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			probes.Add(1)
		}
		server.Config.Handler.ServeHTTP(w, r)
	}))
	transport := client.New(client.Settings{ConnectTimeout: time.Second, IdleTimeout: time.Minute})
	t.Cleanup(transport.CloseIdleConnections)
	f := fleet.New([]config.Model{modelConfig(t, "m", address)}, settings, transport, nil, zap.NewNop())
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	backend := func() fleet.BackendSnapshot { return f.Snapshot()[0].Backends[0] }
	poll.Until(t, "a probe finds the backend ready", func() bool { return backend().State == fleet.Ready })
	since, before := backend().Since, probes.Load()
	poll.Until(t, "ten more probes", func() bool { return probes.Load() > before+10 })
	if b := backend(); b.State != fleet.Ready || !b.Since.Equal(since) {
		t.Errorf("got %s since %s (%q), want ready since %s", b.State, b.Since, b.Reason, since)
	}
}
