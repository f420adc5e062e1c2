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
	memoryGiven   = "512MiB" // GOMEMLIMIT
	memoryCeiling = 700 << 20
	// perHTTP2Connection is how many streams the gateway takes on one connection.
	perHTTP2Connection = 250
)

// memoryStreams is how many streams are held: what BASEGATE_MEMORY says, or as many as take some seconds.
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

// resident is the most memory that the process has had, in bytes, and what it has.
func (p *process) resident() (most, present int) {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(p.t, err)
	kilobytes := func(name string) int {
		found := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(status)
		if found == nil {
			p.t.Fatalf("the system does not tell %s", name)
		}
		n, err := strconv.Atoi(string(found[1]))
		must(p.t, err)
		return n << 10
	}
	return kilobytes("VmHWM"), kilobytes("VmRSS")
}

// held counts the streams that have had their first event, and those that have ended.
type held struct {
	begun, ended atomic.Int64
	shared       []*http.Client // that keep connections
}

// follow reads a stream to its end.
func (h *held) follow(t *testing.T, r io.Reader) {
	t.Helper()
	lines := bufio.NewReaderSize(r, 512)
	if line, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
		t.Errorf("a stream begins with %q, %v", line, err)
		return
	}
	h.begun.Add(1)
	io.Copy(io.Discard, lines)
	h.ended.Add(1)
}

// streams opens slow streams until ctx ends, so many over connections of their own and the others over shared ones.
func (s *siege) streams(ctx context.Context, t *testing.T, own, shared int) *held {
	t.Helper()
	body := fmt.Sprintf(`{"model": "m", "prompt": "Once upon a time", "max_tokens": 8000, "logit_bias": {"%d": -100}, "stream": true}`, s.endOfText())
	h := new(held)
	transport := func(http2 bool) *http.Client {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!http2)
		protocols.SetUnencryptedHTTP2(http2)
		return &http.Client{Transport: &http.Transport{
			Protocols: protocols, DisableKeepAlives: !http2, ReadBufferSize: 512, WriteBufferSize: 512,
			DialContext: (&net.Dialer{Timeout: patience}).DialContext,
		}}
	}
	opening := make(chan struct{}, 100) // at a time
	begin := func(c *http.Client) {
		s.all.Go(func() {
			opening <- struct{}{}
			once := sync.OnceFunc(func() { <-opening })
			defer once()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+s.secret)
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
			once()
			h.follow(t, resp.Body)
		})
	}
	alone := transport(false)
	for range own {
		begin(alone)
	}
	for shared > 0 {
		together := transport(true)
		h.shared = append(h.shared, together)
		for range min(shared, perHTTP2Connection) {
			begin(together)
		}
		shared -= min(shared, perHTTP2Connection)
	}
	return h
}

// The gateway keeps within the memory that it is given, with as many streams as BASEGATE_MEMORY says (10,000 by make
// memory) and hostile clients at once: all kinds but those that are slow to read, which the siege has.
func TestMemoryHasACeiling(t *testing.T) {
	const spare = 300 // connections of the other clients, and files
	streams := memoryStreams(t)
	halfOpen := streams / 2
	files := fileLimit(t)
	// A stream takes two files of the gateway's: one to its client, of which HTTP/2 needs few, and one to its backend.
	own := min(streams, files-streams-halfOpen-halfOpen/10-streams/perHTTP2Connection-spare)
	enoughFiles(t, streams+halfOpen+halfOpen/10+streams/perHTTP2Connection+spare)
	if own < streams {
		t.Logf("a process may have %d files open: %d of the streams share connections (HTTP/2)", files, streams-own)
	}
	withoutRaceDetector(t)
	backend := separateMock(t, "--token-delay", "2s")
	quick := separateMock(t)
	place := newSite(t, settings{
		server: ", read_header_timeout: 10s", rest: "upstream: {idle_timeout: 20s}\nlimits: {concurrency_per_key: 100000}",
		models: model("m", backend) + ", " + model("q", quick),
	})
	t.Setenv("GOMEMLIMIT", memoryGiven)
	s := &siege{gateway: place.serve(), backend: quick, over: make(chan struct{})}
	s.address = strings.TrimPrefix(s.url, "http://")

	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	h := s.streams(ctx, t, own, streams-own)
	poll.Within(t, 10*patience, "all streams have begun", func() bool { return t.Failed() || h.begun.Load() == int64(streams) })
	most, present := s.resident()
	t.Logf("%d streams, %d of them on connections of their own: %d MiB resident, %d MiB at the most", streams, own, present>>20, most>>20)

	closed := s.slowHeaders(t, halfOpen)
	s.slowBodies(t, 200)
	s.rapidReset(t)
	s.repeat(t, 4)
	poll.Within(t, 3*patience, "the half-open connections are closed", func() bool {
		for _, c := range closed {
			if !isClosed(c) {
				return false
			}
		}
		return true
	})
	ended := h.ended.Load()
	close(s.over)
	most, present = s.resident()
	t.Logf("with %d half-open connections and the other hostile clients: %d MiB resident, %d MiB at the most", halfOpen, present>>20, most>>20)
	if most > memoryCeiling {
		t.Errorf("%d MiB were resident, over %d", most>>20, memoryCeiling>>20)
	}
	if ended > 0 {
		t.Errorf("%d streams have ended", ended)
	}
	leave()
	s.all.Wait()
	for _, c := range h.shared {
		c.CloseIdleConnections()
	}
	s.rest()
	_, present = s.resident()
	t.Logf("after it: %d MiB resident", present>>20)
}
