package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// work is one kind of request, sent over and over by so many connections at once.
type work struct {
	id          string
	name        string
	connections int
	events      int           // of the stream; 0: a plain answer
	pace        time.Duration // between two events; 0: all at once
	body        []byte
}

// The works and holds that goals are about. In a short run they are smaller.
const (
	plainOne     = "1 KB plain, 1 connection"
	plainSome    = "1 KB plain, 32 connections"
	plainMany    = "1 KB plain, 256 connections"
	plainLong    = "100 KB plain, 8 connections"
	burstStreams = "bursts"
	pacedStreams = "paced streams"
	heldSome     = "3000 held streams"
	heldMany     = "10000 held streams"
)

func works(short bool) []work {
	plain := func(name string, connections, size int) work {
		body := fmt.Appendf(nil, `{"model": %q, "prompt": %q, "max_tokens": 16}`, model, strings.Repeat("word ", size/5))
		return work{id: name, name: name, connections: connections, body: body}
	}
	stream := func(id string, connections, events int, pace time.Duration) work {
		name := fmt.Sprintf("streams of %d events, %d connections", events, connections)
		if pace > 0 {
			name = fmt.Sprintf("streams of %d events at %v, %d connections", events, pace, connections)
		}
		body := fmt.Appendf(nil, `{"model": %q, "prompt": "Once upon a time", "max_tokens": %d, "stream": true}`, model, events)
		return work{id: id, name: name, connections: connections, events: events, pace: pace, body: body}
	}
	readers, pacedEvents := 200, 100
	if short {
		readers, pacedEvents = 20, 50
	}
	return []work{
		plain(plainOne, 1, 1<<10),
		plain(plainSome, 32, 1<<10),
		plain(plainMany, 256, 1<<10),
		plain(plainLong, 8, 100<<10),
		stream(burstStreams, 16, 200, 0),
		stream(pacedStreams, readers, pacedEvents, 20*time.Millisecond),
	}
}

// measurement is what one work came to at one target in one round.
type measurement struct {
	tally
	wall, cpu   time.Duration
	median, p99 time.Duration // of whole requests
}

// tally counts requests. A failed one was answered with an error or not at all; a cut one ended before its end.
type tally struct {
	whole, failed, cut int
	latencies          []time.Duration // of whole ones
	example            error           // one of the failures
}

const (
	// warmUp comes before each measurement: connections, pools and caches.
	warmUp = 300 * time.Millisecond
	// requestWithin is how long one request may take, beside the pace of its stream, before it counts as cut or failed.
	requestWithin = 5 * time.Second
)

// measure warms up and then takes the process's CPU time around the load. What goes wrong counts from the beginning.
func measure(ctx context.Context, t target, w work, span time.Duration) (*measurement, error) {
	clients := make([]*client, w.connections)
	for i := range clients {
		clients[i] = &client{
			address: t.address, request: t.request(w.body), events: w.events,
			within: requestWithin + 2*time.Duration(w.events)*w.pace,
		}
		defer clients[i].close()
	}
	warming := load(ctx, clients, warmUp)
	before, err := t.process.cpu()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	m := &measurement{tally: load(ctx, clients, span)}
	m.wall = time.Since(began)
	after, err := t.process.cpu()
	if err != nil {
		return nil, err
	}
	m.cpu = after - before
	m.failures(warming)
	slices.Sort(m.latencies)
	m.median, m.p99 = quantile(m.latencies, 0.5), quantile(m.latencies, 0.99)
	return m, ctx.Err() //nolint:wrapcheck // the caller says what was under way
}

// load has each client send for the span; what is under way at its end is finished and counted.
func load(ctx context.Context, clients []*client, span time.Duration) tally {
	until := time.Now().Add(span)
	each := make([]tally, len(clients))
	var workers sync.WaitGroup
	for i, client := range clients {
		workers.Go(func() {
			for time.Now().Before(until) && ctx.Err() == nil {
				began := time.Now()
				err := client.send(ctx)
				each[i].count(time.Since(began), err)
			}
		})
	}
	workers.Wait()
	var sum tally
	for _, one := range each {
		sum.add(one)
	}
	return sum
}

func (t *tally) count(took time.Duration, err error) {
	switch {
	case err == nil:
		t.whole++
		t.latencies = append(t.latencies, took)
		return
	case errors.Is(err, errCut):
		t.cut++
	default:
		t.failed++
	}
	t.example = err
}

func (t *tally) add(o tally) {
	t.whole += o.whole
	t.latencies = append(t.latencies, o.latencies...)
	t.failures(o)
}

// failures adds only what went wrong.
func (t *tally) failures(o tally) {
	t.failed += o.failed
	t.cut += o.cut
	if o.example != nil {
		t.example = o.example
	}
}

var (
	errCut    = errors.New("the answer broke off")
	errStatus = errors.New("not 200")
)

var (
	lastEvent    = []byte("data: [DONE]\n\n")
	endOfMessage = []byte("\n\n")
)

// client sends one request over and over on one connection. An http.Client, which hands each request to two goroutines
// of its own, would take as much of the processors as what is measured.
type client struct {
	address string
	request []byte // as it goes over the connection
	events  int    // of the answer; 0: a plain one
	within  time.Duration

	conn   net.Conn // nil before the first request, and after one that failed
	reader *bufio.Reader
	answer bytes.Buffer
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close() // nothing is left to write
		c.conn = nil
	}
}

// send makes one request and looks at the answer: an error of status, or a body that is not whole. After an error the
// next has another connection.
func (c *client) send(ctx context.Context) error {
	err := c.exchange(ctx)
	if err != nil {
		c.close()
	}
	return err
}

func (c *client) exchange(ctx context.Context) error {
	if c.conn == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		c.conn, c.reader = conn, bufio.NewReader(conn)
	}
	if err := c.conn.SetDeadline(time.Now().Add(c.within)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	defer resp.Body.Close()
	c.answer.Reset()
	if _, err := c.answer.ReadFrom(resp.Body); err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	if resp.Close {
		c.close()
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %d %.300s", errStatus, resp.StatusCode, c.answer.Bytes())
	}
	return c.judge(c.answer.Bytes())
}

// judge tells whether the answer is whole.
func (c *client) judge(answer []byte) error {
	if c.events == 0 {
		if !bytes.HasSuffix(bytes.TrimSpace(answer), []byte("}")) {
			return fmt.Errorf("%w: a body of %d bytes", errCut, len(answer))
		}
		return nil
	}
	events := bytes.Count(answer, endOfMessage) - 1
	if events != c.events || !bytes.HasSuffix(answer, lastEvent) {
		return fmt.Errorf("%w: %d events, the end is %.100q", errCut, events, answer[max(0, len(answer)-100):])
	}
	return nil
}
