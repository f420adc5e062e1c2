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

// holdWorkload is a number of slow streams held open at the same time.
type holdWorkload struct {
	id      string
	streams int
	every   time.Duration // between two events of a stream
}

func (h holdWorkload) name() string {
	return fmt.Sprintf("%d held streams, an event each %v", h.streams, h.every)
}

// holdResult is the result of a holdWorkload at one target in one round.
type holdResult struct {
	requestCounts
	memory float64 // growth of resident memory per stream, in bytes
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
	// warmUpStreams precede the first reading of memory, so that it includes the program's own pages.
	warmUpStreams = 16
	// maxOpening limits the streams being opened at a time: more would overflow the listen queue.
	maxOpening = 64
	// holdTimeout limits a hold from the first stream's start to the last one's end. Later streams count as truncated.
	holdTimeout = 2 * time.Minute
)

var errNoStream = errors.New("no stream began")

// measureHold starts a fresh proxy process, since memory that a process has used before does not show as growth.
func measureHold(ctx context.Context, p programs, name string, h holdWorkload) (m *holdResult, err error) {
	upstream := newSlowUpstream(h.every)
	defer upstream.close()
	b, err := newTestbed(p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	b.upstream = upstream.address()
	t, err := b.addProxy(ctx, name)
	if err != nil {
		return nil, err
	}
	warmUpCounts, err := upstream.hold(ctx, t, warmUpStreams, func() error { return nil })
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
		if err := pause(ctx, 2*h.every); err != nil {
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
	m.addFailures(warmUpCounts)
	return m, nil
}

func pause(ctx context.Context, span time.Duration) error {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("hold streams: %w", ctx.Err())
	}
}

// slowUpstream sends an event at intervals on each stream until release, when all streams end.
type slowUpstream struct {
	server *httptest.Server
	every  time.Duration

	mu      sync.Mutex
	release chan struct{} // closed to end the streams
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
	case completionsPath:
		u.stream(w, r)
	case "/tokenize": // the gateway counts the prompt's tokens during slow streams
		_, _ = w.Write([]byte(`{"count":4,"max_model_len":1000000,"tokens":[1,2,3,4]}`)) // fails only if the proxy disconnected
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
			_, _ = w.Write(append(end, doneEvent...)) // fails only if the proxy disconnected
			return
		}
	}
}

// hold opens the streams, calls whileHeld once each has begun or failed, ends them and counts the results.
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

// streamClient is the client side of a held stream. It does not use an http.Client, which would need more memory than
// the proxy that is measured.
type streamClient struct {
	conn net.Conn
	stop func() bool // from context.AfterFunc, which closes conn
	body io.ReadCloser
	read []byte // the last bytes of the body
}

// openStream connects, sends the request and returns at the first event.
func openStream(ctx context.Context, t target) (*streamClient, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s := &streamClient{conn: conn, stop: context.AfterFunc(ctx, func() { _ = conn.Close() })} // closed either way
	if err := s.begin(t); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// begin sends the request and reads until the first event.
func (s *streamClient) begin(t target) error {
	body := fmt.Appendf(nil, `{"model": %q, "prompt": "Once upon a time", "max_tokens": 4096, "stream": true}`, model)
	if _, err := s.conn.Write(t.request(completionsPath, body)); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(s.conn, 1<<10), nil) //nolint:bodyclose // closed by close
	if err != nil {
		return fmt.Errorf("read response: %w", err)
	}
	s.body = resp.Body
	if resp.StatusCode != http.StatusOK {
		text := make([]byte, 300)
		n, _ := io.ReadFull(resp.Body, text) // a part of it is enough
		return fmt.Errorf("%w: %d %s", errStatus, resp.StatusCode, text[:n])
	}
	for !bytes.Contains(s.read, eventEnd) {
		if err := s.readSome(); err != nil {
			return fmt.Errorf("%w: %w", errTruncated, err)
		}
	}
	return nil
}

// readSome reads once and keeps enough to recognise the end of the stream.
func (s *streamClient) readSome() error {
	piece := make([]byte, 512)
	n, err := s.body.Read(piece)
	s.read = append(s.read, piece[:n]...)
	s.read = append(s.read[:0], s.read[max(0, len(s.read)-len(piece)):]...)
	return err //nolint:wrapcheck // the caller adds context
}

// readAll reads the rest and returns an error unless the stream ends with [DONE].
func (s *streamClient) readAll() error {
	defer s.close()
	for {
		switch err := s.readSome(); {
		case err == nil:
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("%w: %w", errTruncated, err)
		case !bytes.HasSuffix(s.read, doneEvent):
			return fmt.Errorf("%w: ends with %.100q", errTruncated, s.read[max(0, len(s.read)-100):])
		default:
			return nil
		}
	}
}

func (s *streamClient) close() {
	if s.stop() {
		_ = s.conn.Close() // nothing left to write
	}
}
