//go:build e2e

package e2e_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// hostileLoad is a gateway with hostile clients, which run until done is closed.
type hostileLoad struct {
	*gateway
	address    string        // host:port of the public listener
	backend    string        // its URL
	done       chan struct{} // closed to stop the hostile clients
	goroutines sync.WaitGroup
}

// attackInterval is the pause between two attacks of a client that repeats them: floods are a firewall's task.
const attackInterval = 20 * time.Millisecond

// waitInterval waits for attackInterval; false if the load has been stopped.
func (l *hostileLoad) waitInterval() bool {
	timer := time.NewTimer(attackInterval)
	defer timer.Stop()
	select {
	case <-l.done:
		return false
	case <-timer.C:
		return true
	}
}

// dial opens a connection with a small receive buffer, so that the gateway soon notices a client that does not read.
func (l *hostileLoad) dial() (net.Conn, error) {
	control := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}
	return (&net.Dialer{Timeout: waitTimeout, Control: control}).Dial("tcp", l.address)
}

// exchange sends raw bytes over a new connection and returns the statuses that come back, as readStatuses does.
func (l *hostileLoad) exchange(raw []byte) string {
	conn, err := l.dial()
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(waitTimeout))
	go conn.Write(raw) // the gateway may respond and close before it has read everything
	return readStatuses(conn)
}

// readStatuses lists the statuses of all responses on a connection, without 1xx, and how the connection ends.
func readStatuses(conn io.Reader) string {
	var list []string
	reader := bufio.NewReader(conn)
	for {
		resp, err := http.ReadResponse(reader, nil)
		switch {
		case err == nil:
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			return strings.Join(append(list, "closed"), " ")
		case strings.HasPrefix(err.Error(), "malformed HTTP"):
			return strings.Join(append(list, "not HTTP/1"), " ")
		default:
			return strings.Join(append(list, err.Error()), " ")
		}
		if resp.StatusCode < http.StatusOK {
			continue
		}
		// If the gateway did not read the whole request, its reset may arrive before the end of its response.
		if _, err := io.Copy(io.Discard, resp.Body); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			return strings.Join(append(list, strconv.Itoa(resp.StatusCode), "cut"), " ")
		}
		list = append(list, strconv.Itoa(resp.StatusCode))
	}
}

// rawPost is a completion request as bytes. Each header ends with CRLF.
func (l *hostileLoad) rawPost(headers, body string) []byte {
	return []byte("POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer " + l.secret + "\r\n" + headers + "\r\n" + body)
}

// rawPostWithLength is a completion request as bytes, with its Content-Length.
func (l *hostileLoad) rawPostWithLength(headers string, body []byte) []byte {
	return append(l.rawPost(fmt.Sprintf("%sContent-Length: %d\r\n", headers, len(body)), ""), body...)
}

// gzippedSpaces returns n MiB of spaces, each MiB as a gzip member.
func gzippedSpaces(t *testing.T, n int) []byte {
	t.Helper()
	var member bytes.Buffer
	w := gzip.NewWriter(&member)
	w.Write(bytes.Repeat([]byte(" "), 1<<20))
	must(t, w.Close())
	return bytes.Repeat(member.Bytes(), n)
}

// rawRequest is a malformed, oversized or unusual request and the expected result.
type rawRequest struct {
	name string
	raw  []byte
	want string // as readStatuses returns it; alternatives are joined by "or"
}

const (
	closing = "Connection: close\r\n"
	chunked = "Transfer-Encoding: chunked\r\n"
	// full is the other response to a body that must be read before it can be refused: on a busy machine several of them
	// fill the memory for bodies.
	full     = " or 503 closed"
	smuggled = "GET /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n"
)

func (l *hostileLoad) rawRequests(t *testing.T) []rawRequest {
	t.Helper()
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n", n) }
	pipelined := strings.Repeat("GET /v1/models HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer "+l.secret+"\r\n\r\n", 100)
	return []rawRequest{
		{"two lengths", l.rawPost(length(len(smallRequest))+length(len(smallRequest)+len(smuggled)), smallRequest+smuggled), "400 closed"},
		{"two lengths, the longer first", l.rawPost(length(len(smallRequest)+len(smuggled))+length(len(smallRequest)), smallRequest+smuggled), "400 closed"},
		{"two lengths in one line", l.rawPost("Content-Length: 5, 5\r\n", "hello"+smuggled), "400 closed"},
		{"a length with a sign", l.rawPost("Content-Length: +5\r\n", "hello"+smuggled), "400 closed"},
		{"a negative length", l.rawPost("Content-Length: -1\r\n", smuggled), "400 closed"},
		{"a length of many digits", l.rawPost("Content-Length: "+strings.Repeat("9", 40)+"\r\n", smuggled), "400 closed"},
		{"a length and chunked coding", l.rawPost(length(5+len(smuggled))+chunked, "0\r\n\r\n"+smuggled), "400 closed"},
		{"chunked coding and a length", l.rawPost(chunked+length(4), "0\r\n\r\n"+smuggled), "400 closed"},
		{"a space before the colon", l.rawPost("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"+smuggled), "400 closed"},
		{"an unknown transfer coding", l.rawPost("Transfer-Encoding: xchunked\r\n"+length(5), "0\r\n\r\n"+smuggled), "501 closed"},
		{"two transfer codings", l.rawPost(chunked+"Transfer-Encoding: identity\r\n", "0\r\n\r\n"+smuggled), "501 closed"},
		{"malformed chunks", l.rawPost(chunked, "hello"+smuggled), "400 closed"},
		{"a chunk longer than its length", l.rawPost(chunked, "2\r\nhello\r\n0\r\n\r\n"+smuggled), "400 closed"},
		{"OPTIONS * with chunked coding", []byte("OPTIONS * HTTP/1.1\r\nHost: a\r\n" + chunked + length(5) + "\r\n0\r\n\r\n" + smuggled), "404 closed"},
		{"a bare LF", []byte("GET /v1/models HTTP/1.1\nHost: a\r\n\r\n" + smuggled), "400 closed"},
		{"a folded line", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n" + smuggled), "400 closed"},
		{"a transfer coding in HTTP/1.0", []byte("POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nHost: gateway\r\n" + chunked + length(0) + "\r\n0\r\n\r\n" + smuggled), "401 closed"},
		{"no host", []byte("GET /v1/models HTTP/1.1\r\n\r\n"), "400 closed"},
		{"two hosts", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), "400 closed"},
		{"a bare CR", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n"), "400 closed"},
		{"a zero byte", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \x00\r\n\r\n"), "400 closed"},
		{"HTTP/0.9", []byte("GET /v1/models\r\n\r\n"), "400 closed"},
		{"HTTP/3.0", []byte("GET /v1/models HTTP/3.0\r\nHost: a\r\n\r\n"), "505 closed"},
		{"TLS", []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), "400 closed"},
		{"noise", bytes.Repeat([]byte{0, 0xff, '\r', '\n'}, 1000), "400 closed"},
		{"HTTP/2 and then noise", []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("noise", 100)), "not HTTP/1"},
		{"a header of 100 KB", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 100_000) + "\r\n\r\n"), "431 closed"},
		{"a URL of 100 KB", []byte("GET /" + strings.Repeat("x", 100_000) + " HTTP/1.1\r\nHost: a\r\n\r\n"), "431 closed"},
		{"20,000 headers", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X: y\r\n", 20_000) + "\r\n"), "431 closed"},
		{"a key of 50 KB", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\n" + closing + "Authorization: Bearer " + strings.Repeat("x", 50_000) + "\r\n\r\n"), "401 closed"},
		{"two Authorization headers", l.rawPost("Authorization: Bearer "+l.secret+"\r\n"+closing+length(0), ""), "401 closed"},
		{"an unknown expectation", l.rawPost("Expect: the-unexpected\r\n"+length(0), ""), "417 closed"},
		{"100 pipelined requests", []byte(pipelined + "GET /healthz HTTP/1.1\r\nHost: a\r\n" + closing + "\r\n"), strings.Repeat("200 ", 101) + "closed"},
		{"a gzip bomb", l.rawPostWithLength(closing+"Content-Encoding: gzip\r\n", gzippedSpaces(t, 256)), "413 closed" + full},
		{"malformed gzip", l.rawPostWithLength(closing+"Content-Encoding: gzip\r\n", []byte(smallRequest)), "400 closed"},
		{"truncated gzip", l.rawPostWithLength(closing+"Content-Encoding: gzip\r\n", gzippedSpaces(t, 1)[:500]), "400 closed"},
		{"an unsupported encoding", l.rawPostWithLength(closing+"Content-Encoding: gzip, gzip\r\n", gzippedSpaces(t, 1)), "415 closed"},
		{"an announced body of 1 TB", l.rawPost("Expect: 100-continue\r\nContent-Length: 1000000000000\r\n", ""), "413 closed"},
		{"a body of 17 MiB", l.rawPostWithLength(closing, bytes.Repeat([]byte(" "), 17<<20)), "413 closed"},
		{"deep nesting", l.rawPostWithLength(closing, bytes.Repeat([]byte("["), 1<<20)), "400 closed" + full},
	}
}

// sendRawRequests sends the raw requests one after another from each client until the load is stopped, and checks the
// results. Each client sends every request at least once.
func (l *hostileLoad) sendRawRequests(t *testing.T, clients int) {
	t.Helper()
	list := l.rawRequests(t)
	for i := range clients {
		l.goroutines.Go(func() {
			for n := i; n < i+len(list) || l.waitInterval(); n++ {
				m := list[n%len(list)]
				if got := l.exchange(m.raw); !slices.Contains(strings.Split(m.want, " or "), got) {
					t.Errorf("%s: got %s, want %s", m.name, got, m.want)
				}
			}
		})
	}
}

// holdConnections opens n connections and sends text over each and then, if drip is not 0, one drip byte every 200 ms,
// until the gateway closes them or the load is stopped. The returned channel is closed when all connections are closed.
func (l *hostileLoad) holdConnections(t *testing.T, n int, drip byte, text func(i int) []byte) (closed <-chan struct{}) {
	t.Helper()
	var wg sync.WaitGroup
	opening := make(chan struct{}, 64) // limits concurrent dials, so that the accept queue does not overflow
	for i := range n {
		wg.Go(func() {
			opening <- struct{}{}
			conn, err := l.dial()
			<-opening
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.Write(text(i))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				io.Copy(io.Discard, conn)
			}()
			ticker := new(time.Ticker)
			if drip != 0 {
				ticker = time.NewTicker(200 * time.Millisecond)
				defer ticker.Stop()
			}
			for {
				select {
				case <-ended:
					return
				case <-l.done:
					return
				case <-ticker.C:
					conn.Write([]byte{drip})
				}
			}
		})
	}
	done := make(chan struct{})
	l.goroutines.Go(func() {
		wg.Wait()
		close(done)
	})
	return done
}

// slowHeaders are clients that send nothing, or never finish their headers. The gateway must close all of them within
// read_header_timeout.
func (l *hostileLoad) slowHeaders(t *testing.T, n int) (closed []<-chan struct{}) {
	t.Helper()
	unfinished := "POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nX: "
	return []<-chan struct{}{
		l.holdConnections(t, n, 0, func(i int) []byte { return []byte([]string{"", "P", unfinished}[i%3]) }),
		l.holdConnections(t, n/10, 'x', func(int) []byte { return []byte(unfinished) }),
	}
}

// slowBodies are clients that send their body byte by byte, or stop after 100 Continue. The gateway must reject those
// without a valid key before it reads the body; closed covers only these.
func (l *hostileLoad) slowBodies(t *testing.T, n int) (closed []<-chan struct{}) {
	t.Helper()
	l.holdConnections(t, n/4, ' ', func(int) []byte { return l.rawPost("Content-Length: 100000\r\n", "{") })
	l.holdConnections(t, n/4, ' ', func(int) []byte { return l.rawPost(chunked, "fffff\r\n{") })
	l.holdConnections(t, n/4, 0, func(int) []byte { return l.rawPost("Expect: 100-continue\r\nContent-Length: 16000000\r\n", "") })
	return []<-chan struct{}{l.holdConnections(t, n/4, ' ', func(int) []byte {
		return []byte("POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer wrong\r\nContent-Length: 100000\r\n\r\n{")
	})}
}

// endOfText returns the end-of-text token, which a long stream has to exclude.
func (l *hostileLoad) endOfText() int {
	l.t.Helper()
	var special struct{ Tokens []int }
	request := l.request(l.t.Context(), http.MethodPost, l.backend+"/tokenize", `{"model": "`+checkpoint+`", "prompt": "<|end_of_text|>"}`)
	request.Header.Set("Content-Type", "application/json")
	if err := json.Unmarshal([]byte(l.do(request).body), &special); err != nil || len(special.Tokens) == 0 {
		l.t.Fatal("the mock does not return the end-of-text token: ", err)
	}
	return special.Tokens[len(special.Tokens)-1]
}

// slowReaders request a fast stream of megabytes and read only its beginning until the load is stopped. The rest that
// they read then must not look complete.
func (l *hostileLoad) slowReaders(t *testing.T, n int) {
	t.Helper()
	body := fmt.Sprintf(
		`{"model": "m", "prompt": "Once upon a time", "max_tokens": 5000, "logprobs": 20, "logit_bias": {"%d": -100}, "stream": true}`,
		l.endOfText())
	for range n {
		l.goroutines.Go(func() {
			conn, err := l.dial()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.Write(l.rawPostWithLength("", []byte(body)))
			head := make([]byte, 100)
			if _, err := io.ReadFull(conn, head); err != nil || !strings.HasPrefix(string(head), "HTTP/1.1 200") {
				t.Errorf("slow reader: %v: %q", err, head)
			}
			<-l.done
			conn.SetDeadline(time.Now().Add(waitTimeout))
			rest, err := io.ReadAll(conn)
			if strings.Contains(string(rest), "[DONE]") || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("slow reader: the stream ends with %q, %v", rest[max(0, len(rest)-100):], err)
			}
		})
	}
}

// unreadResponses are clients that send requests without pause, with and without a key, and read nothing. The gateway
// must close their connections.
func (l *hostileLoad) unreadResponses(t *testing.T, n int) (closed []<-chan struct{}) {
	t.Helper()
	models := "GET /v1/models HTTP/1.1\r\nHost: gateway\r\n"
	for i := range n {
		request := []string{models + "\r\n", models + "Authorization: Bearer " + l.secret + "\r\n\r\n"}[i%2]
		done := make(chan struct{})
		closed = append(closed, done)
		l.goroutines.Go(func() {
			defer close(done)
			conn, err := l.dial()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(2 * waitTimeout))
			for err == nil {
				_, err = conn.Write(bytes.Repeat([]byte(request), 100))
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the gateway did not close the connection of a client that reads no responses")
			}
		})
	}
	return closed
}

// rapidReset is an HTTP/2 client that opens and resets a thousand streams on each connection (CVE-2023-44487). Bytes that
// are no frame end each connection.
func (l *hostileLoad) rapidReset(t *testing.T) {
	t.Helper()
	frames := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	for id := uint32(1); id < 2000; id += 2 {
		number := []byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}
		frames = append(append(append(frames, 0, 0, 6, 1, 5), number...), 0x82, 0x84, 0x86, 0x41, 1, 'a') // GET / of http://a
		frames = append(append(append(frames, 0, 0, 4, 3, 0), number...), 0, 0, 0, 8)
	}
	frames = append(frames, strings.Repeat("noise", 10)...)
	l.goroutines.Go(func() {
		for l.waitInterval() {
			conn, err := l.dial()
			if err != nil {
				t.Error(err)
				return
			}
			conn.SetDeadline(time.Now().Add(waitTimeout))
			go conn.Write(frames)
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("rapid reset: the connection is still open")
			}
			conn.Close()
		}
	})
}

// legitimateClient is a client with its own key whose requests must succeed during the attack.
type legitimateClient struct {
	key       string
	keepAlive *http.Client
	timeout   time.Duration // of one request
	latencies []time.Duration
}

// send sends request number i, plain or streamed, on a kept or a new connection, and records its latency.
func (c *legitimateClient) send(t *testing.T, url string, i int) {
	t.Helper()
	body, via := smallRequest, c.keepAlive
	if i%2 == 1 {
		body = strings.TrimSuffix(smallRequest, "}") + `, "stream": true}`
	}
	if i%4 < 2 {
		via = httpClient
	}
	ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+c.key)
	start := time.Now()
	resp, err := via.Do(req)
	if err != nil {
		t.Errorf("a legitimate request: %v", err)
		return
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	c.latencies = append(c.latencies, time.Since(start))
	if err != nil || resp.StatusCode != http.StatusOK || i%2 == 1 && !strings.HasSuffix(string(got), "data: [DONE]\n\n") {
		t.Errorf("a legitimate request: %d %v: %s", resp.StatusCode, err, got)
	}
}

// String summarizes the latencies.
func (c *legitimateClient) String() string {
	slices.Sort(c.latencies)
	n := len(c.latencies)
	if n == 0 {
		return "no requests"
	}
	return fmt.Sprintf("%d requests: median %v, 99th percentile %v, maximum %v", n, c.latencies[n/2], c.latencies[n*99/100], c.latencies[n-1])
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Slow uploads of one key held every place, and all uploads of others got 503.
func TestSlowUploadsOfOneKeyLeavePlacesForOthers(t *testing.T) {
	const slow = 40
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	others := []string{g.createKeyOf(g.newAccount("eve@example.org"), "eve"), g.createKey("second")}
	for _, other := range others {
		g.waitForKey(other)
	}
	load := &hostileLoad{gateway: g, done: make(chan struct{}), address: strings.TrimPrefix(g.url, "http://")}
	form := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"slow.jsonl\"\r\n\r\n"
	head := "POST /v1/files HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer " + g.secret +
		"\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000\r\n\r\n"
	closed := load.holdConnections(t, slow, 'x', func(int) []byte { return []byte(head + form) })
	running, waiting := `basegate_turns_running{work="uploads"}`, `basegate_turns_waiting{work="uploads"}`
	poll.Until(t, "the slow uploads have their places", func() bool { return g.metric(running) == 4 && g.metric(waiting) == slow-4 })
	for i := range 50 {
		if got := g.upload(others[i%2], "{}\n", "purpose", "batch"); got.status != http.StatusOK {
			t.Fatalf("upload %d, of another account and another key in turn: got %d %s, want 200", i, got.status, got.body)
		}
	}
	poll.Until(t, "the slow uploads are ended", func() bool { return isClosed(closed) })
	close(load.done)
	load.goroutines.Wait()
	poll.Until(t, "no upload is left", func() bool { return g.metric(running) == 0 && g.metric(waiting) == 0 })
	if g.metric(`basegate_turns_refused_total{work="uploads"}`) == 0 {
		t.Error("no slow upload has waited in vain")
	}
}

// During all attacks at once, every hostile client gets the expected response, a legitimate client is served within its
// timeout, and afterwards nothing of the attacks is left.
func TestHostileClientsDoNotAffectALegitimateOne(t *testing.T) {
	const slowHeaderConns, slowReaders = 5000, 8
	slowReadersClosed := fmt.Sprintf(`basegate_requests_total{code="client_gone",model="m"} %d`, slowReaders)
	requireOpenFiles(t, slowHeaderConns+1000)
	useBinaryWithoutRaceDetector(t)
	_, backend := startMockProcess(t)
	// The gateway closes the connection of a client that does not read after idle_timeout plus three seconds. Both times hold for the
	// legitimate client too, also where the machine stalls.
	env := newEnvironment(t, settings{
		server: ", read_header_timeout: 20s", extra: "upstream: {idle_timeout: 20s}\nlimits: {concurrency_per_key: 64}",
	}, backend)
	legitimate := &legitimateClient{key: env.createKey("legitimate"), keepAlive: &http.Client{Transport: &http.Transport{}}, timeout: time.Minute} // an attack that starves it would last longer
	load := &hostileLoad{gateway: env.serve(), backend: backend, done: make(chan struct{})}
	load.address = strings.TrimPrefix(load.url, "http://")
	before := load.metric("go_goroutines")

	i := 0
	for ; i < 100; i++ {
		legitimate.send(t, load.url, i)
	}
	t.Log("before the attack: ", legitimate)
	legitimate.latencies = nil

	closed := slices.Concat(load.slowHeaders(t, slowHeaderConns), load.slowBodies(t, 100), load.unreadResponses(t, 2))
	load.slowReaders(t, slowReaders)
	load.rapidReset(t)
	load.sendRawRequests(t, 2)
	deadline := time.Now().Add(3 * waitTimeout)
	for open := true; open && time.Now().Before(deadline); i++ {
		legitimate.send(t, load.url, i)
		closed = slices.DeleteFunc(closed, isClosed)
		open = len(closed) > 0 || i%50 != 0 || !strings.Contains(load.get(load.admin, "/metrics").body, slowReadersClosed)
	}
	close(load.done)
	load.goroutines.Wait()
	if len(closed) > 0 {
		t.Errorf("the gateway has not closed the connections of %d groups of hostile clients", len(closed))
	}
	t.Log("during the attack: ", legitimate)
	legitimate.keepAlive.CloseIdleConnections()
	load.waitIdle()
	t.Logf("goroutines: %.0f before, %.0f after", before, load.metric("go_goroutines"))
	if load.metric("basegate_ledger_lost_rows_total") != 0 {
		t.Error("ledger rows are lost")
	}
	for _, row := range env.usageRows() {
		if row.State != "settled" {
			t.Errorf("a row is not settled: %+v", row)
		}
	}
}
