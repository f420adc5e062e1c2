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

// workload is one kind of request, sent repeatedly on a number of connections at the same time.
type workload struct {
	id          string
	name        string
	connections int
	events      int           // of the stream; 0 means a plain response
	pace        time.Duration // between two events; 0 means all at once
	path        string
	body        []byte
}

// Ids of the workloads and holds. In a short run they are smaller.
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

func workloads(short bool) []workload {
	plain := func(name string, connections, size int) workload {
		body := fmt.Appendf(nil, `{"model": %q, "prompt": %q, "max_tokens": 16}`, model, strings.Repeat("word ", size/5))
		return workload{id: name, name: name, connections: connections, path: completionsPath, body: body}
	}
	stream := func(id string, connections, events int, pace time.Duration) workload {
		name := fmt.Sprintf("streams of %d events, %d connections", events, connections)
		if pace > 0 {
			name = fmt.Sprintf("streams of %d events at %v, %d connections", events, pace, connections)
		}
		body := fmt.Appendf(nil, `{"model": %q, "prompt": "Once upon a time", "max_tokens": %d, "stream": true}`, model, events)
		return workload{id: id, name: name, connections: connections, events: events, pace: pace, path: completionsPath, body: body}
	}
	readers, pacedEvents := 200, 100
	if short {
		readers, pacedEvents = 20, 50
	}
	return []workload{
		plain(plainOne, 1, 1<<10),
		plain(plainSome, 32, 1<<10),
		plain(plainMany, 256, 1<<10),
		plain(plainLong, 8, 100<<10),
		stream(burstStreams, 16, 200, 0),
		stream(pacedStreams, readers, pacedEvents, 20*time.Millisecond),
	}
}

// loadResult is the result of a workload at one target in one round.
type loadResult struct {
	requestCounts
	wall, cpu   time.Duration
	serverCPU   time.Duration // of target.server
	median, p99 time.Duration // of complete requests
}

// requestCounts counts requests by result. A failed one got an error status or no response, a truncated one a response
// that ended early.
type requestCounts struct {
	complete, failed, truncated int
	latencies                   []time.Duration // of complete ones
	exampleErr                  error           // one of the errors
}

const (
	// warmUp precedes each measurement, to fill connections, pools and caches.
	warmUp = 300 * time.Millisecond
	// requestTimeout limits a request, in addition to the pace of its stream. Beyond it the request counts as
	// truncated or failed.
	requestTimeout = 5 * time.Second
)

// measure warms up, then runs the load and takes the CPU time of the target's process. Errors during the warm-up count
// too.
func measure(ctx context.Context, t target, w workload, span time.Duration) (*loadResult, error) {
	clients := make([]*client, w.connections)
	for i := range clients {
		if len(t.keys) > 0 {
			t.key = t.keys[i%len(t.keys)]
		}
		clients[i] = &client{
			address: t.address, request: t.request(w.path, w.body), events: w.events,
			timeout: requestTimeout + 2*time.Duration(w.events)*w.pace,
		}
		defer clients[i].close()
	}
	warmUpCounts := load(ctx, clients, warmUp)
	before, serverBefore, err := t.cpu()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	m := &loadResult{requestCounts: load(ctx, clients, span)}
	m.wall = time.Since(began)
	after, serverAfter, err := t.cpu()
	if err != nil {
		return nil, err
	}
	m.cpu, m.serverCPU = after-before, serverAfter-serverBefore
	m.addFailures(warmUpCounts)
	slices.Sort(m.latencies)
	m.median, m.p99 = quantile(m.latencies, 0.5), quantile(m.latencies, 0.99)
	return m, ctx.Err() //nolint:wrapcheck // the caller adds context
}

// cpu returns the CPU time of the target's process and of its server.
func (t *target) cpu() (own, server time.Duration, err error) {
	if own, err = t.process.cpu(); err != nil || t.server == nil {
		return own, 0, err
	}
	server, err = t.server.cpu()
	return own, server, err
}

// load lets each client send requests for the span. Requests in flight at its end are completed and counted.
func load(ctx context.Context, clients []*client, span time.Duration) requestCounts {
	until := time.Now().Add(span)
	each := make([]requestCounts, len(clients))
	var workers sync.WaitGroup
	for i, client := range clients {
		workers.Go(func() {
			for time.Now().Before(until) && ctx.Err() == nil {
				began := time.Now()
				err := client.send(ctx)
				each[i].record(time.Since(began), err)
			}
		})
	}
	workers.Wait()
	var sum requestCounts
	for _, one := range each {
		sum.add(one)
	}
	return sum
}

func (c *requestCounts) record(took time.Duration, err error) {
	switch {
	case err == nil:
		c.complete++
		c.latencies = append(c.latencies, took)
		return
	case errors.Is(err, errTruncated):
		c.truncated++
	default:
		c.failed++
	}
	c.exampleErr = err
}

func (c *requestCounts) add(o requestCounts) {
	c.complete += o.complete
	c.latencies = append(c.latencies, o.latencies...)
	c.addFailures(o)
}

// addFailures adds only the failures.
func (c *requestCounts) addFailures(o requestCounts) {
	c.failed += o.failed
	c.truncated += o.truncated
	if o.exampleErr != nil {
		c.exampleErr = o.exampleErr
	}
}

var (
	errTruncated = errors.New("the response was truncated")
	errStatus    = errors.New("not 200")
)

var (
	doneEvent = []byte("data: [DONE]\n\n")
	eventEnd  = []byte("\n\n")
)

// client sends one request repeatedly on one connection. An http.Client, which hands each request to two goroutines of
// its own, would use as much CPU as what is measured.
type client struct {
	address string
	request []byte // as written to the connection
	events  int    // of the response; 0 means a plain one
	timeout time.Duration

	conn     net.Conn // nil before the first request and after a failed one
	reader   *bufio.Reader
	response bytes.Buffer
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close() // nothing left to write
		c.conn = nil
	}
}

// send makes one request. It returns an error for a status other than 200 and for an incomplete body. After an error
// the next request uses a new connection.
func (c *client) send(ctx context.Context) error {
	err := c.roundTrip(ctx)
	if err != nil {
		c.close()
	}
	return err
}

func (c *client) roundTrip(ctx context.Context) error {
	if c.conn == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		c.conn, c.reader = conn, bufio.NewReader(conn)
	}
	if err := c.conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return fmt.Errorf("read response: %w", err)
	}
	defer resp.Body.Close()
	c.response.Reset()
	if _, err := c.response.ReadFrom(resp.Body); err != nil {
		return fmt.Errorf("%w: %w", errTruncated, err)
	}
	if resp.Close {
		c.close()
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %d %.300s", errStatus, resp.StatusCode, c.response.Bytes())
	}
	return c.checkComplete(c.response.Bytes())
}

// checkComplete returns an error if the response is incomplete.
func (c *client) checkComplete(response []byte) error {
	if c.events == 0 {
		if !bytes.HasSuffix(bytes.TrimSpace(response), []byte("}")) {
			return fmt.Errorf("%w: body of %d bytes", errTruncated, len(response))
		}
		return nil
	}
	events := bytes.Count(response, eventEnd) - 1
	if events != c.events || !bytes.HasSuffix(response, doneEvent) {
		return fmt.Errorf("%w: %d events, ends with %.100q", errTruncated, events, response[max(0, len(response)-100):])
	}
	return nil
}
