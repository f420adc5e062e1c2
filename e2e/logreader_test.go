//go:build e2e

package e2e_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// servePiped starts a gateway whose log goes to a pipe, and returns the pipe's reader, from which the test has read up to
// the line that says where the gateway listens.
func servePiped(t *testing.T) (g *gateway, log *bufio.Reader, pipe *os.File) {
	t.Helper()
	env := newEnvironment(t, settings{probeTimeout: "20s"}, startMock(t, mockvllm.Options{}).URL())
	g = &gateway{environment: env, t: t, secret: env.createKey("test")}
	g.process, pipe = startPiped(t, "serve", "--config", env.config)
	pipe.SetReadDeadline(time.Now().Add(waitTimeout))
	log = bufio.NewReader(pipe)
	listening := regexp.MustCompile(`"listening","public":"([^"]+)","admin":"([^"]+)"`)
	for {
		line, err := log.ReadString('\n')
		if err != nil {
			t.Fatalf("read log: %v", err)
		}
		if m := listening.FindStringSubmatch(line); m != nil {
			pipe.SetReadDeadline(time.Time{}) // the exit of the process ends later reads
			g.url, g.admin = "http://"+m[1], "http://"+m[2]
			return g, log, pipe
		}
	}
}

// droppedLines returns the metric of the log lines that are lost.
func (g *gateway) droppedLines() (n int) {
	g.t.Helper()
	m := regexp.MustCompile(`(?m)^basegate_log_lines_dropped_total (.*)$`).FindStringSubmatch(g.get(g.admin, "/metrics").body)
	if m == nil {
		g.t.Fatal("/metrics lacks basegate_log_lines_dropped_total")
	}
	var value float64
	if _, err := fmt.Sscan(m[1], &value); err != nil {
		g.t.Fatal(err)
	}
	return int(value)
}

const lostLines = "note: the log cannot be written; "

// checkLostLines checks that the gateway is ready and reports lost lines.
func (g *gateway) checkLostLines() {
	g.t.Helper()
	if got := g.get(g.url, "/readyz"); got.status != http.StatusOK || !strings.HasPrefix(got.body, "ready\n"+lostLines) {
		g.t.Errorf("/readyz: got %d %q, want 200 and a note about lost lines", got.status, got.body)
	}
}

func TestGatewayOutlivesTheReaderOfItsLog(t *testing.T) {
	g, _, pipe := servePiped(t)
	pipe.Close()
	for range 20 {
		if got := g.complete(smallRequest); got.status != http.StatusOK {
			t.Fatalf("got status %d, want 200: %s", got.status, got.body)
		}
	}
	poll.Until(t, "20 lines are counted as dropped", func() bool { return g.droppedLines() >= 20 })
	g.checkLostLines()
	g.signal(syscall.SIGHUP)
	g.signal(syscall.SIGTERM)
	if code := g.waitExit(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

// requestMany sends requests for an unknown path, each of which has a log line, on a few connections.
func (g *gateway) requestMany(n int) {
	g.t.Helper()
	client := &http.Client{Transport: &http.Transport{}, Timeout: waitTimeout}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range n / 4 {
				resp, err := client.Do(g.request(g.t.Context(), http.MethodGet, g.url+"/v1/nothing", ""))
				if err != nil {
					g.t.Errorf("request while the log stalls: %v", err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	all.Wait()
}

// stall fills the pipe and the gateway's buffer, so that lines are dropped.
func (g *gateway) stall() {
	g.t.Helper()
	for range 20 {
		g.requestMany(1000)
		if g.t.Failed() {
			g.t.FailNow()
		}
		if g.droppedLines() > 0 {
			return
		}
	}
	g.t.Fatal("no line was dropped after 20,000 requests")
}

func TestStalledReaderOfTheLogBlocksNoRequest(t *testing.T) {
	g, log, _ := servePiped(t)
	g.stall()
	if got := g.complete(smallRequest); got.status != http.StatusOK {
		t.Errorf("completion: got status %d, want 200: %s", got.status, got.body)
	}
	g.checkLostLines()

	// The reader reads again: whole lines, and those of new requests.
	lines := make(chan string)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(lines)
		for {
			line, err := log.ReadString('\n')
			if err != nil {
				return
			}
			lines <- line
		}
	}()
	var found atomic.Int64 // lines of requests
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		for line := range lines {
			io.WriteString(g.stderr, line)
			if !json.Valid([]byte(line)) && !strings.HasPrefix(line, "basegate: stop: ") {
				t.Errorf("not a whole line: %q", line)
			}
			if strings.Contains(line, `"msg":"request"`) {
				found.Add(1)
			}
		}
	}()
	poll.Until(t, "/readyz says nothing of the log any more", func() bool { return !strings.Contains(g.get(g.url, "/readyz").body, lostLines) })
	g.complete(smallRequest)
	dropped := g.droppedLines()
	// Before the exit, which waits for its lines to be read for two seconds only.
	poll.Until(t, "1000s of lines of requests and 2 were written or dropped", func() bool {
		n := int(found.Load())
		return n >= 1000 && (n+dropped)%1000 == 2
	})
	g.signal(syscall.SIGTERM)
	<-ended
	<-checked
	g.waitStop()
	if n := int(found.Load()); (n+dropped)%1000 != 2 {
		t.Errorf("%d lines of requests were written and %d dropped, want 1000s of them and 2 together", n, dropped)
	}
}

func TestStalledReaderOfTheLogDoesNotPreventTheExit(t *testing.T) {
	t.Parallel() // it waits
	g, _, _ := servePiped(t)
	g.stall()
	g.signal(syscall.SIGTERM)
	if code := g.waitExit(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

func TestFailingStartSaysWhy(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	env := newEnvironment(t, settings{adminListen: taken.Addr().String()}, "http://127.0.0.1:1")
	_, stderr, code := runCommand(t, "serve", "--config", env.config)
	if want := "basegate: listen on " + taken.Addr().String(); code != 1 || strings.Count(stderr, want) != 1 {
		t.Errorf("exit code %d, stderr %q, want 1 and once %q", code, stderr, want)
	}
	p, pipe := startPiped(t, "serve", "--config", env.config)
	pipe.Close()
	if code := p.waitExit(); code != 1 {
		t.Errorf("without a reader of stderr: exit code %d, want 1", code)
	}
}
