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
)

// siege is a gateway under attack: clients that mean no good, until it is over.
type siege struct {
	*gateway
	address string        // host:port of the public listener
	backend string        // its URL
	over    chan struct{} // closed at the end
	all     sync.WaitGroup
}

// pace is how long a client that attacks again and again rests in between: a flood is for a firewall.
const pace = 20 * time.Millisecond

// goesOn waits for the pace and tells whether the siege goes on.
func (s *siege) goesOn() bool {
	rest := time.NewTimer(pace)
	defer rest.Stop()
	select {
	case <-s.over:
		return false
	case <-rest.C:
		return true
	}
}

// dial opens a connection with small buffers, so that what its owner does not read is soon felt on the other side.
func (s *siege) dial() (net.Conn, error) {
	small := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}
	return (&net.Dialer{Timeout: patience, Control: small}).Dial("tcp", s.address)
}

// attack sends a text over a connection of its own and tells what comes back.
func (s *siege) attack(text []byte) string {
	conn, err := s.dial()
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	go conn.Write(text) // the gateway may answer, and close, before it has read it all
	return answers(conn)
}

// answers lists the statuses of all answers that a connection brings, and how it ends. An interim one is none.
func answers(conn io.Reader) string {
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
		// Where a request was not read to its end, the reset that tells of it may overtake the answer's own.
		if _, err := io.Copy(io.Discard, resp.Body); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			return strings.Join(append(list, strconv.Itoa(resp.StatusCode), "cut"), " ")
		}
		list = append(list, strconv.Itoa(resp.StatusCode))
	}
}

// post is a completion request as it goes over the wire. The headers end with a line break each.
func (s *siege) post(headers, body string) []byte {
	return []byte("POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer " + s.secret + "\r\n" + headers + "\r\n" + body)
}

// sized is a whole completion request.
func (s *siege) sized(headers string, body []byte) []byte {
	return append(s.post(fmt.Sprintf("%sContent-Length: %d\r\n", headers, len(body)), ""), body...)
}

// zipped is n megabytes of spaces, each a gzip member of its own.
func zipped(t *testing.T, n int) []byte {
	t.Helper()
	var member bytes.Buffer
	w := gzip.NewWriter(&member)
	w.Write(bytes.Repeat([]byte(" "), 1<<20))
	must(t, w.Close())
	return bytes.Repeat(member.Bytes(), n)
}

// misfit is a request that must not get through, and what it gets.
type misfit struct {
	name string
	text []byte
	want string // the statuses of all answers, and how the connection ends
}

const (
	closing  = "Connection: close\r\n"
	chunked  = "Transfer-Encoding: chunked\r\n"
	smuggled = "GET /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n"
)

func (s *siege) misfits(t *testing.T) []misfit {
	t.Helper()
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n", n) }
	pipelined := strings.Repeat("GET /v1/models HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer "+s.secret+"\r\n\r\n", 100)
	return []misfit{
		{"two lengths", s.post(length(len(small))+length(len(small)+len(smuggled)), small+smuggled), "400 closed"},
		{"two lengths, the longer first", s.post(length(len(small)+len(smuggled))+length(len(small)), small+smuggled), "400 closed"},
		{"two lengths in one line", s.post("Content-Length: 5, 5\r\n", "hello"+smuggled), "400 closed"},
		{"a length with a sign", s.post("Content-Length: +5\r\n", "hello"+smuggled), "400 closed"},
		{"a negative length", s.post("Content-Length: -1\r\n", smuggled), "400 closed"},
		{"a length of many digits", s.post("Content-Length: "+strings.Repeat("9", 40)+"\r\n", smuggled), "400 closed"},
		{"a length and chunks", s.post(length(5+len(smuggled))+chunked, "0\r\n\r\n"+smuggled), "400 closed"},
		{"chunks and a length", s.post(chunked+length(4), "0\r\n\r\n"+smuggled), "400 closed"},
		{"a space before the colon", s.post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"+smuggled), "400 closed"},
		{"an unknown coding", s.post("Transfer-Encoding: xchunked\r\n"+length(5), "0\r\n\r\n"+smuggled), "501 closed"},
		{"two codings", s.post(chunked+"Transfer-Encoding: identity\r\n", "0\r\n\r\n"+smuggled), "501 closed"},
		{"chunks that are none", s.post(chunked, "hello"+smuggled), "closed"},
		{"a coding in HTTP/1.0", []byte("POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nHost: gateway\r\n" + chunked + length(0) + "\r\n0\r\n\r\n" + smuggled), "401 closed"},
		{"no host", []byte("GET /v1/models HTTP/1.1\r\n\r\n"), "400 closed"},
		{"two hosts", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), "400 closed"},
		{"a line break of its own", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n"), "400 closed"},
		{"a zero byte", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \x00\r\n\r\n"), "400 closed"},
		{"HTTP/0.9", []byte("GET /v1/models\r\n\r\n"), "400 closed"},
		{"HTTP/3.0", []byte("GET /v1/models HTTP/3.0\r\nHost: a\r\n\r\n"), "505 closed"},
		{"TLS", []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), "400 closed"},
		{"noise", bytes.Repeat([]byte{0, 0xff, '\r', '\n'}, 1000), "400 closed"},
		{"HTTP/2 and then noise", []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("noise", 100)), "not HTTP/1"},
		{"a header of 100 KB", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 100_000) + "\r\n\r\n"), "431 closed"},
		{"an address of 100 KB", []byte("GET /" + strings.Repeat("x", 100_000) + " HTTP/1.1\r\nHost: a\r\n\r\n"), "431 closed"},
		{"20,000 headers", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X: y\r\n", 20_000) + "\r\n"), "431 closed"},
		{"a key of 50 KB", []byte("GET /v1/models HTTP/1.1\r\nHost: a\r\n" + closing + "Authorization: Bearer " + strings.Repeat("x", 50_000) + "\r\n\r\n"), "401 closed"},
		{"two keys", s.post("Authorization: Bearer "+s.secret+"\r\n"+closing+length(0), ""), "401 closed"},
		{"an expectation that is unknown", s.post("Expect: the-unexpected\r\n"+length(0), ""), "417 closed"},
		{"100 requests at once", []byte(pipelined + "GET /healthz HTTP/1.1\r\nHost: a\r\n" + closing + "\r\n"), strings.Repeat("200 ", 101) + "closed"},
		{"a gzip bomb", s.sized(closing+"Content-Encoding: gzip\r\n", zipped(t, 256)), "413 closed"},
		{"gzip that is none", s.sized(closing+"Content-Encoding: gzip\r\n", []byte(small)), "400 closed"},
		{"gzip that breaks off", s.sized(closing+"Content-Encoding: gzip\r\n", zipped(t, 1)[:500]), "400 closed"},
		{"another encoding", s.sized(closing+"Content-Encoding: gzip, gzip\r\n", zipped(t, 1)), "415 closed"},
		{"a body that is announced to be huge", s.post("Expect: 100-continue\r\nContent-Length: 1000000000000\r\n", ""), "413 closed"},
		{"17 MB", s.sized(closing, bytes.Repeat([]byte(" "), 17<<20)), "413 closed"},
		{"depth", s.sized(closing, bytes.Repeat([]byte("["), 1<<20)), "400 closed"},
	}
}

// repeat makes the requests that must not get through one after the other, by so many clients, until the siege is over.
func (s *siege) repeat(t *testing.T, clients int) {
	t.Helper()
	list := s.misfits(t)
	for i := range clients {
		s.all.Go(func() {
			for turn := i; turn < i+len(list) || s.goesOn(); turn++ { // each at least once
				m := list[turn%len(list)]
				if got := s.attack(m.text); got != m.want {
					t.Errorf("%s: got %s, want %s", m.name, got, m.want)
				}
			}
		})
	}
}

// hold opens n connections, sends the text over each and then, if drip, a byte of it again and again, until the gateway
// closes them or the siege is over. The channel is closed when none is open any more.
func (s *siege) hold(t *testing.T, n int, drip byte, text func(i int) []byte) (closed <-chan struct{}) {
	t.Helper()
	var group sync.WaitGroup
	opening := make(chan struct{}, 64) // at a time, so that none is lost in the queue of the socket
	for i := range n {
		group.Go(func() {
			opening <- struct{}{}
			conn, err := s.dial()
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
			beat := new(time.Ticker)
			if drip != 0 {
				beat = time.NewTicker(200 * time.Millisecond)
				defer beat.Stop()
			}
			for {
				select {
				case <-ended:
					return
				case <-s.over:
					return
				case <-beat.C:
					conn.Write([]byte{drip})
				}
			}
		})
	}
	done := make(chan struct{})
	s.all.Go(func() {
		group.Wait()
		close(done)
	})
	return done
}

// slowHeaders are clients that connect and say nothing, or never come to the end of their headers. The gateway must
// have closed them all within read_header_timeout.
func (s *siege) slowHeaders(t *testing.T, n int) (closed []<-chan struct{}) {
	t.Helper()
	unfinished := "POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nX: "
	return []<-chan struct{}{
		s.hold(t, n, 0, func(i int) []byte { return []byte([]string{"", "P", unfinished}[i%3]) }),
		s.hold(t, n/10, 'x', func(int) []byte { return []byte(unfinished) }),
	}
}

// slowBodies are clients whose body comes byte by byte, or, where they were asked to go on, never. Those without a key
// must be turned away without waiting for it.
func (s *siege) slowBodies(t *testing.T, n int) (closed []<-chan struct{}) {
	t.Helper()
	s.hold(t, n/4, ' ', func(int) []byte { return s.post("Content-Length: 100000\r\n", "{") })
	s.hold(t, n/4, ' ', func(int) []byte { return s.post(chunked, "fffff\r\n{") })
	s.hold(t, n/4, 0, func(int) []byte { return s.post("Expect: 100-continue\r\nContent-Length: 16000000\r\n", "") })
	return []<-chan struct{}{s.hold(t, n/4, ' ', func(int) []byte {
		return []byte("POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer wrong\r\nContent-Length: 100000\r\n\r\n{")
	})}
}

// endOfText is the token that ends a text, which a stream that is to last must not have.
func (s *siege) endOfText() int {
	s.t.Helper()
	var special struct{ Tokens []int }
	question := s.request(s.t.Context(), http.MethodPost, s.backend+"/tokenize", `{"model": "`+checkpoint+`", "prompt": "<|end_of_text|>"}`)
	question.Header.Set("Content-Type", "application/json")
	if err := json.Unmarshal([]byte(s.do(question).body), &special); err != nil || len(special.Tokens) == 0 {
		s.t.Fatal("the mock does not tell which token ends a text: ", err)
	}
	return special.Tokens[len(special.Tokens)-1]
}

// slowReaders ask for a fast stream of megabytes and read no more than its beginning until the siege is over. What they
// read then must not look whole.
func (s *siege) slowReaders(t *testing.T, n int) {
	t.Helper()
	body := fmt.Sprintf(`{"model": "m", "prompt": "Once upon a time", "max_tokens": 5000, "logprobs": 20, "logit_bias": {"%d": -100}, "stream": true}`, s.endOfText())
	for range n {
		s.all.Go(func() {
			conn, err := s.dial()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.Write(s.sized("", []byte(body)))
			begin := make([]byte, 100)
			if _, err := io.ReadFull(conn, begin); err != nil || !strings.HasPrefix(string(begin), "HTTP/1.1 200") {
				t.Errorf("slow reader: %v: %q", err, begin)
			}
			<-s.over
			conn.SetDeadline(time.Now().Add(patience))
			rest, err := io.ReadAll(conn)
			if strings.Contains(string(rest), "[DONE]") || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("slow reader: the stream ends with %q, %v", rest[max(0, len(rest)-100):], err)
			}
		})
	}
}

// unreadAnswers are clients who ask without end, with a key and without, and read nothing. The gateway must give them
// up.
func (s *siege) unreadAnswers(t *testing.T, n int) (closed []<-chan struct{}) {
	t.Helper()
	models := "GET /v1/models HTTP/1.1\r\nHost: gateway\r\n"
	for i := range n {
		request := []string{models + "\r\n", models + "Authorization: Bearer " + s.secret + "\r\n\r\n"}[i%2]
		done := make(chan struct{})
		closed = append(closed, done)
		s.all.Go(func() {
			defer close(done)
			conn, err := s.dial()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(2 * patience))
			for err == nil {
				_, err = conn.Write(bytes.Repeat([]byte(request), 100))
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("a client that reads no answers is not given up")
			}
		})
	}
	return closed
}

// rapidReset is an HTTP/2 client that takes every request back at once, a thousand on a connection. What is no frame
// ends each.
func (s *siege) rapidReset(t *testing.T) {
	t.Helper()
	frames := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	for id := uint32(1); id < 2000; id += 2 {
		number := []byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}
		frames = append(append(append(frames, 0, 0, 6, 1, 5), number...), 0x82, 0x84, 0x86, 0x41, 1, 'a') // GET / of http://a
		frames = append(append(append(frames, 0, 0, 4, 3, 0), number...), 0, 0, 0, 8)
	}
	frames = append(frames, strings.Repeat("noise", 10)...)
	s.all.Go(func() {
		for s.goesOn() {
			conn, err := s.dial()
			if err != nil {
				t.Error(err)
				return
			}
			conn.SetDeadline(time.Now().Add(patience))
			go conn.Write(frames)
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("rapid reset: the connection is still open")
			}
			conn.Close()
		}
	})
}

// honest is a client that means well, with a key of its own.
type honest struct {
	key     string
	pool    *http.Client
	patient time.Duration // how long one request may take
	took    []time.Duration
}

// ask makes one request, plain or streamed, on a kept connection or a new one, and notes how long it took.
func (h *honest) ask(t *testing.T, url string, turn int) {
	t.Helper()
	body, with := small, h.pool
	if turn%2 == 1 {
		body = strings.TrimSuffix(small, "}") + `, "stream": true}`
	}
	if turn%4 < 2 {
		with = client
	}
	ctx, cancel := context.WithTimeout(t.Context(), h.patient)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+h.key)
	began := time.Now()
	resp, err := with.Do(req)
	if err != nil {
		t.Errorf("an honest request: %v", err)
		return
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	h.took = append(h.took, time.Since(began))
	if err != nil || resp.StatusCode != http.StatusOK || turn%2 == 1 && !strings.HasSuffix(string(answer), "data: [DONE]\n\n") {
		t.Errorf("an honest request: %d %v: %s", resp.StatusCode, err, answer)
	}
}

// String is how long the requests took.
func (h *honest) String() string {
	slices.Sort(h.took)
	n := len(h.took)
	if n == 0 {
		return "no requests"
	}
	return fmt.Sprintf("%d requests: median %v, 99 of 100 within %v, the worst %v", n, h.took[n/2], h.took[n*99/100], h.took[n-1])
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Whatever bad clients do at once, each gets what it deserves, an honest one is served meanwhile, and nothing of them is
// left in the end.
func TestHostileClientsDoNotHurtAnHonestOne(t *testing.T) {
	const halfOpen, slowReaders = 5000, 8
	givenUp := fmt.Sprintf(`basegate_requests_total{code="client_gone",model="m"} %d`, slowReaders)
	enoughFiles(t, halfOpen+1000)
	withoutRaceDetector(t)
	backend := separateMock(t)
	// A client that does not read is given up after idle_timeout and three seconds.
	place := newSite(t, settings{server: ", read_header_timeout: 6s", rest: "upstream: {idle_timeout: 5s}\nlimits: {concurrency_per_key: 64}"}, backend)
	h := &honest{key: place.key("honest"), pool: &http.Client{Transport: &http.Transport{}}, patient: 5 * time.Second}
	s := &siege{gateway: place.serve(), backend: backend, over: make(chan struct{})}
	s.address = strings.TrimPrefix(s.url, "http://")
	before := s.metric("go_goroutines")

	turn := 0
	for ; turn < 100; turn++ {
		h.ask(t, s.url, turn)
	}
	t.Log("in peace: ", h)
	h.took = nil

	closed := slices.Concat(s.slowHeaders(t, halfOpen), s.slowBodies(t, 100), s.unreadAnswers(t, 2))
	s.slowReaders(t, slowReaders)
	s.rapidReset(t)
	s.repeat(t, 2)
	deadline := time.Now().Add(3 * patience)
	for open := true; open && time.Now().Before(deadline); turn++ {
		h.ask(t, s.url, turn)
		closed = slices.DeleteFunc(closed, isClosed)
		open = len(closed) > 0 || turn%50 != 0 || !strings.Contains(s.get(s.admin, "/metrics").body, givenUp)
	}
	close(s.over)
	s.all.Wait()
	if len(closed) > 0 {
		t.Errorf("%d kinds of clients were still connected", len(closed))
	}
	t.Log("under attack: ", h)
	h.pool.CloseIdleConnections()
	s.rest()
	t.Logf("goroutines: %.0f before, %.0f after", before, s.metric("go_goroutines"))
	if s.metric("basegate_ledger_lost_rows_total") != 0 {
		t.Error("rows are lost")
	}
	for _, row := range place.usage() {
		if row.State != "settled" {
			t.Errorf("%+v", row)
		}
	}
}
