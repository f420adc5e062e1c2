//go:build e2e

package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"basegate/internal/poll"
)

const (
	memoryLimit = "512MiB"  // the gateway's GOMEMLIMIT
	maxResident = 700 << 20 // bytes
	// perHTTP2Connection is the gateway's limit of streams on one HTTP/2 connection.
	perHTTP2Connection = 250
)

// memoryStreams returns the number of streams to hold: BASEGATE_MEMORY, or 1000.
func memoryStreams(t *testing.T) int {
	t.Helper()
	text := os.Getenv("BASEGATE_MEMORY")
	if text == "" {
		return 1000
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// resident returns the peak and the current resident memory of the process, in bytes.
func (p *process) resident() (peak, current int) {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(p.t, err)
	field := func(name string) int {
		found := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(status)
		if found == nil {
			p.t.Fatalf("no %s in /proc", name)
		}
		n, err := strconv.Atoi(string(found[1]))
		must(p.t, err)
		return n << 10
	}
	return field("VmHWM"), field("VmRSS")
}

// heldStreams counts the streams that have received their first event, and those that have ended.
type heldStreams struct {
	started, ended atomic.Int64
	http2Clients   []*http.Client // their kept connections must be closed at the end
}

// follow reads a stream to its end.
func (h *heldStreams) follow(t *testing.T, r io.Reader) {
	t.Helper()
	lines := bufio.NewReaderSize(r, 512)
	if line, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
		t.Errorf("the stream starts with %q, %v", line, err)
		return
	}
	h.started.Add(1)
	io.Copy(io.Discard, lines)
	h.ended.Add(1)
}

// streams opens slow streams that last until ctx ends: own with a connection each, and shared over HTTP/2 connections.
func (l *hostileLoad) streams(ctx context.Context, t *testing.T, own, shared int) *heldStreams {
	t.Helper()
	body := fmt.Sprintf(`{"model": "m", "prompt": "Once upon a time", "max_tokens": 8000, "logit_bias": {"%d": -100}, "stream": true}`, l.endOfText())
	h := new(heldStreams)
	transport := func(http2 bool) *http.Client {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!http2)
		protocols.SetUnencryptedHTTP2(http2)
		return &http.Client{Transport: &http.Transport{
			Protocols: protocols, DisableKeepAlives: !http2, ReadBufferSize: 512, WriteBufferSize: 512,
			DialContext: (&net.Dialer{Timeout: waitTimeout}).DialContext,
		}}
	}
	opening := make(chan struct{}, 100) // limits the streams that are being opened
	open := func(c *http.Client) {
		l.goroutines.Go(func() {
			opening <- struct{}{}
			release := sync.OnceFunc(func() { <-opening })
			defer release()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/completions", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+l.secret)
			resp, err := c.Do(req)
			if err != nil {
				t.Errorf("open a stream: %v", err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				text, _ := io.ReadAll(resp.Body)
				t.Errorf("open a stream: %d %s", resp.StatusCode, text)
				return
			}
			release()
			h.follow(t, resp.Body)
		})
	}
	http1 := transport(false)
	for range own {
		open(http1)
	}
	for shared > 0 {
		http2 := transport(true)
		h.http2Clients = append(h.http2Clients, http2)
		for range min(shared, perHTTP2Connection) {
			open(http2)
		}
		shared -= min(shared, perHTTP2Connection)
	}
	return h
}

// The gateway stays under maxResident with as many streams as BASEGATE_MEMORY says (10,000 by make memory) and hostile
// clients of all kinds except slow readers, which TestHostileClientsDoNotAffectALegitimateOne has.
func TestMemoryHasACeiling(t *testing.T) {
	const spare = 300 // files and connections of the other clients
	streams := memoryStreams(t)
	slowHeaderConns := streams / 2
	files := openFileLimit(t)
	// A stream takes two of the gateway's file descriptors: one to its client, of which HTTP/2 needs few, and one to its
	// backend.
	own := min(streams, files-streams-slowHeaderConns-slowHeaderConns/10-streams/perHTTP2Connection-spare)
	requireOpenFiles(t, streams+slowHeaderConns+slowHeaderConns/10+streams/perHTTP2Connection+spare)
	if own < streams {
		t.Logf("the limit of %d open files makes %d of the streams share HTTP/2 connections", files, streams-own)
	}
	useBinaryWithoutRaceDetector(t)
	_, backend := startMockProcess(t, "--token-delay", "2s")
	_, quick := startMockProcess(t)
	env := newEnvironment(t, settings{
		server: ", read_header_timeout: 10s", extra: "upstream: {idle_timeout: 5m}\nlimits: {concurrency_per_key: 100000}",
		models: modelConfig("m", backend) + ", " + modelConfig("q", quick),
	})
	t.Setenv("GOMEMLIMIT", memoryLimit)
	load := &hostileLoad{gateway: env.serve(), backend: quick, done: make(chan struct{})}
	load.address = strings.TrimPrefix(load.url, "http://")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held := load.streams(ctx, t, own, streams-own)
	poll.Within(t, 10*waitTimeout, "all streams have started", func() bool { return t.Failed() || held.started.Load() == int64(streams) })
	peak, current := load.resident()
	t.Logf("%d streams, %d of them with a connection each: %d MiB resident, peak %d MiB", streams, own, current>>20, peak>>20)

	closed := load.slowHeaders(t, slowHeaderConns)
	load.slowBodies(t, 200)
	load.rapidReset(t)
	load.sendRawRequests(t, 4)
	poll.Until(t, "the slow-header connections are closed", func() bool {
		for _, c := range closed {
			if !isClosed(c) {
				return false
			}
		}
		return true
	})
	ended := held.ended.Load()
	close(load.done)
	peak, current = load.resident()
	t.Logf("with %d slow-header connections and the other hostile clients: %d MiB resident, peak %d MiB", slowHeaderConns, current>>20, peak>>20)
	if peak > maxResident {
		t.Errorf("the peak was %d MiB resident, want at most %d", peak>>20, maxResident>>20)
	}
	if ended > 0 {
		t.Errorf("%d streams ended before they were cancelled, want 0", ended)
	}
	cancel()
	load.goroutines.Wait()
	for _, c := range held.http2Clients {
		c.CloseIdleConnections()
	}
	load.waitIdle()
	_, current = load.resident()
	t.Logf("after the streams: %d MiB resident", current>>20)
}
