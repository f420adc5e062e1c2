package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// hold is so many slow streams held open at once.
type holdWorkload struct {
	id      string
	streams int
	every   time.Duration // from one event of a stream to its next
}

func (h holdWorkload) name() string {
	return fmt.Sprintf("%d held streams, an event each %v", h.streams, h.every)
}

// held is what a hold came to at one target in one round.
type holdResult struct {
	requestCounts
	memory float64 // bytes for each stream: what the process grew by while it held them
}

func holds(short bool, descriptors int) []holdWorkload {
	some, many, every := 3_000, 10_000, 3*time.Second
	if short {
		some, many, every = 300, 1_000, 500*time.Millisecond
	}
	most := maxStreams(descriptors)
	return []holdWorkload{{heldSome, min(some, most), every}, {heldMany, min(many, most), every}}
}

const (
	// firstStreams come before the memory is taken for the first time, so that it holds the program's own pages.
	warmUpStreams = 16
	// openersAtOnce is how many streams are begun at a time: more would wait in the listener's queue or be refused.
	maxOpening = 64
	// holdWithin bounds a hold, from the first stream's beginning to the last one's end. What takes longer is cut.
	holdTimeout = 2 * time.Minute
)

var errNoStream = errors.New("no stream began")

// measureHeld starts a proxy of its own, since memory that a process has had before does not show when it is needed again.
func measureHold(ctx context.Context, p programs, name string, h holdWorkload) (m *holdResult, err error) {
	upstream := newSlowUpstream(h.every)
	defer upstream.close()
	s, err := newTestbed(p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	s.upstream = upstream.address()
	t, err := s.addProxy(ctx, name)
	if err != nil {
		return nil, err
	}
	warming, err := upstream.hold(ctx, t, warmUpStreams, func() error { return nil })
	if err != nil {
		return nil, err
	}
	before, err := t.process.residentMemory()
	if err != nil {
		return nil, err
	}
	var during int64
	m = &holdResult{}
	m.requestCounts, err = upstream.hold(ctx, t, h.streams, func() error {
		if err := rest(ctx, 2*h.every); err != nil {
			return err
		}
		during, err = t.process.residentMemory()
		return err
	})
	if err != nil {
		return nil, err
	}
	begun := m.complete + m.truncated
	if begun == 0 {
		return nil, errors.Join(errNoStream, m.exampleErr)
	}
	m.memory = float64(during-before) / float64(begun)
	m.addFailures(warming)
	return m, nil
}

func rest(ctx context.Context, span time.Duration) error {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("hold streams: %w", ctx.Err())
	}
}

// slowUpstream sends streams an event now and then, until they may end, which they do all at once.
type slowUpstream struct {
	server *httptest.Server
	every  time.Duration

	mu      sync.Mutex
	release chan struct{} // closed when the streams may end
}

func newSlowUpstream(every time.Duration) *slowUpstream {
	u := &slowUpstream{every: every, release: make(chan struct{})}
	u.server = httptest.NewServer(http.HandlerFunc(u.serve))
	return u
}

func (u *slowUpstream) address() string { return u.server.Listener.Addr().String() }

func (u *slowUpstream) close() {
	u.server.CloseClientConnections()
	u.server.Close()
}

const (
	slowEvent = `data: {"id":"cmpl-slow","object":"text_completion","created":1767225600,"model":"` + model +
		`","choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":%s,"stop_reason":null}]}` + "\n\n"
	slowUsage = `data: {"id":"cmpl-slow","object":"text_completion","created":1767225600,"model":"` + model +
		`","choices":[],"usage":{"prompt_tokens":4,"total_tokens":%d,"completion_tokens":%d}}` + "\n\n"
)

func (u *slowUpstream) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/completions":
		u.stream(w, r)
	case "/tokenize": // as the gateway asks about prompts whose stream takes its time
		_, _ = w.Write([]byte(`{"count":4,"max_model_len":1000000,"tokens":[1,2,3,4]}`)) // a proxy that left needs none
	}
}

func (u *slowUpstream) stream(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20)) //nolint:forbidigo // bounded
	if err != nil {
		return
	}
	u.mu.Lock()
	release := u.release
	u.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	event := fmt.Appendf(nil, slowEvent, "null")
	next := time.NewTicker(u.every)
	defer next.Stop()
	for sent := 1; ; sent++ {
		if _, err := w.Write(event); err != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-next.C:
		case <-r.Context().Done():
			return
		case <-release:
			end := fmt.Appendf(nil, slowEvent, `"length"`)
			if bytes.Contains(body, []byte("include_usage")) {
				end = fmt.Appendf(end, slowUsage, 5+sent, 1+sent)
			}
			_, _ = w.Write(append(end, doneEvent...)) // a proxy that left needs none
			return
		}
	}
}

// hold begins so many streams, calls whileHeld when each has begun or failed, lets them end, and counts how they did.
func (u *slowUpstream) hold(ctx context.Context, t target, streams int, whileHeld func() error) (requestCounts, error) {
	ctx, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	release := make(chan struct{})
	u.mu.Lock()
	u.release = release
	u.mu.Unlock()
	openers := make(chan struct{}, maxOpening)
	begun := make(chan struct{}, streams)
	each := make([]requestCounts, streams)
	var readers sync.WaitGroup
	for i := range each {
		readers.Go(func() {
			openers <- struct{}{}
			s, err := openStream(ctx, t)
			<-openers
			begun <- struct{}{}
			if err == nil {
				err = s.readAll()
			}
			each[i].record(0, err)
		})
	}
	for range each {
		<-begun
	}
	err := whileHeld()
	if err != nil {
		cancel()
	}
	close(release)
	readers.Wait()
	var sum requestCounts
	for _, one := range each {
		sum.add(one)
	}
	return sum, err
}

// heldStream is a client's end of a stream. It is read without an http.Client, which would take more memory than the
// proxy that is measured.
type streamClient struct {
	conn net.Conn
	stop func() bool // of the connection's end with its context
	body io.ReadCloser
	read []byte // the last bytes of it
}

// openStream connects, and is there when the first event is.
func openStream(ctx context.Context, t target) (*streamClient, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s := &streamClient{conn: conn, stop: context.AfterFunc(ctx, func() { _ = conn.Close() })} // it ends either way
	if err := s.begin(t); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// begin sends the request and reads up to the first event.
func (s *streamClient) begin(t target) error {
	body := fmt.Appendf(nil, `{"model": %q, "prompt": "Once upon a time", "max_tokens": 4096, "stream": true}`, model)
	if _, err := s.conn.Write(t.request(body)); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(s.conn, 1<<10), nil) //nolint:bodyclose // by close
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	s.body = resp.Body
	if resp.StatusCode != http.StatusOK {
		said := make([]byte, 300)
		n, _ := io.ReadFull(resp.Body, said) // what there is of it
		return fmt.Errorf("%w: %d %s", errStatus, resp.StatusCode, said[:n])
	}
	for !bytes.Contains(s.read, eventEnd) {
		if err := s.next(); err != nil {
			return fmt.Errorf("%w: %w", errTruncated, err)
		}
	}
	return nil
}

// next reads once, and keeps what could hold the end of the stream.
func (s *streamClient) next() error {
	piece := make([]byte, 512)
	n, err := s.body.Read(piece)
	s.read = append(s.read, piece[:n]...)
	s.read = append(s.read[:0], s.read[max(0, len(s.read)-len(piece)):]...)
	return err //nolint:wrapcheck // the caller says what was under way
}

// readToEnd reads all and is content only with a stream that ended as it should.
func (s *streamClient) readAll() error {
	defer s.close()
	for {
		switch err := s.next(); {
		case err == nil:
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("%w: %w", errTruncated, err)
		case !bytes.HasSuffix(s.read, doneEvent):
			return fmt.Errorf("%w: the end is %.100q", errTruncated, s.read[max(0, len(s.read)-100):])
		default:
			return nil
		}
	}
}

func (s *streamClient) close() {
	if s.stop() {
		_ = s.conn.Close() // nothing is left to write
	}
}
