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
	"sync"
	"time"
)

// load is one kind of request, sent repeatedly on a number of connections at the same time.
type load struct {
	name        string
	connections int
	events      int           // of the stream; 0 means a plain response, anyEvents any number
	pace        time.Duration // between two events; 0 means all at once
	held        bool          // each stream is sent once, and all are open at the same time
	accounts    int           // that the connections are spread over
	gateways    int           // on one PostgreSQL database that they are spread over; 0: one
	lines       int           // of the batch beside which it is sent
	scale       int           // that divides the numbers of conversations and questions
	fill        int           // of the caches of all replicas by the prompts, in percent
	path        string
	body        []byte
	goals       []goal
}

// anyEvents are the events of a stream whose length is not known before.
const anyEvents = -1

const (
	// warmUp precedes each measurement, to fill connections, pools and caches.
	warmUp = 300 * time.Millisecond
	// requestTimeout limits a request, in addition to the pace of its stream. Beyond it the request counts as
	// truncated or failed.
	requestTimeout = 5 * time.Second
	// maxOpening limits the new connections that wait for their first response: more would overflow the listen queue.
	maxOpening = 64
)

// counts counts requests by result. A failed one got an error status or no response, a truncated one a response that ended
// early.
type counts struct {
	complete, failed, truncated int
	example                     error // one of the errors
}

func (c *counts) record(err error) {
	switch {
	case err == nil:
		c.complete++
		return
	case errors.Is(err, errTruncated):
		c.truncated++
	default:
		c.failed++
	}
	c.example = err
}

func (c *counts) add(o counts) {
	c.complete += o.complete
	c.failed += o.failed
	c.truncated += o.truncated
	if o.example != nil {
		c.example = o.example
	}
}

// sample is what a number of requests to one target took.
type sample struct {
	counts    counts
	wall, cpu time.Duration
	serverCPU time.Duration   // of target.server
	latencies []time.Duration // of complete requests, sorted
}

// quantile returns the latency that a share q of the requests does not exceed, or 0 if none is complete.
func (s *sample) quantile(q float64) time.Duration {
	if len(s.latencies) == 0 {
		return 0
	}
	return s.latencies[min(int(q*float64(len(s.latencies))), len(s.latencies)-1)]
}

// rate returns the complete requests a second.
func (s *sample) rate() float64 { return float64(s.counts.complete) / s.wall.Seconds() }

// perRequest returns the share of each complete request in µs.
func (s *sample) perRequest(d time.Duration) float64 { return micros(d) / float64(s.counts.complete) }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

var errNoneComplete = errors.New("no request was complete")

// measure warms up, sends a load for the span, and takes the CPU time of the target's process. Errors during the warm-up
// count too.
func (t *target) measure(ctx context.Context, l *load, span time.Duration) *sample {
	clients := t.clients(l.connections, l.events, requestTimeout+2*time.Duration(l.events)*l.pace)
	defer closeAll(clients)
	requests := make([][]byte, l.connections)
	for i := range requests {
		requests[i] = t.request(i, l.path, l.body)
	}
	repeat := func(span time.Duration) func(i int) []byte {
		end := time.Now().Add(span)
		return func(i int) []byte {
			if time.Now().After(end) {
				return nil
			}
			return requests[i]
		}
	}
	before := send(ctx, clients, repeat(warmUp)).counts
	cpu, serverCPU := t.cpu()
	began := time.Now()
	s := send(ctx, clients, repeat(span))
	s.wall = time.Since(began)
	s.cpu, s.serverCPU = t.cpu()
	s.cpu, s.serverCPU = s.cpu-cpu, s.serverCPU-serverCPU
	if s.counts.complete == 0 {
		check(fmt.Errorf("%w: %w", errNoneComplete, s.counts.example))
	}
	before.complete = 0
	s.counts.add(before)
	check(ctx.Err())
	return s
}

func (t *target) cpu() (own, server time.Duration) {
	for _, g := range t.gateways() {
		used, _ := g.process.used()
		own += used
	}
	if t.server != nil {
		server, _ = t.server.used()
	}
	return own, server
}

// send lets each client send what next returns for it, one request after another, until next returns nil.
func send(ctx context.Context, clients []*client, next func(i int) []byte) *sample {
	each := make([]sample, len(clients))
	var workers sync.WaitGroup
	for i, c := range clients {
		workers.Go(func() {
			for request := next(i); request != nil && ctx.Err() == nil; request = next(i) {
				began := time.Now()
				err := c.send(ctx, request)
				each[i].counts.record(err)
				if err == nil {
					each[i].latencies = append(each[i].latencies, time.Since(began))
				}
			}
		})
	}
	workers.Wait()
	sum := &sample{}
	for _, one := range each {
		sum.counts.add(one.counts)
		sum.latencies = append(sum.latencies, one.latencies...)
	}
	slices.Sort(sum.latencies)
	return sum
}

func onceEach(clients int, request []byte) func(i int) []byte {
	sent := make([]bool, clients)
	return func(i int) []byte {
		if sent[i] {
			return nil
		}
		sent[i] = true
		return request
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

// client sends requests on one connection. An http.Client, which hands each request to two goroutines of its own, would use
// as much CPU as what is measured.
type client struct {
	address string
	events  int // of each response, as those of a load
	timeout time.Duration
	opening chan struct{} // holds an element for each connection that waits for its first response

	conn     net.Conn // nil before the first request and after a failed one
	reader   *bufio.Reader
	response bytes.Buffer
}

// clients returns clients of the target without connections.
func (t *target) clients(n, events int, timeout time.Duration) []*client {
	opening := make(chan struct{}, maxOpening)
	all, gateways := make([]*client, n), t.gateways()
	for i := range all {
		all[i] = &client{address: gateways[i%len(gateways)].address, events: events, timeout: timeout, opening: opening}
	}
	return all
}

func closeAll(clients []*client) {
	for _, c := range clients {
		c.close()
	}
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close() // nothing left to write
		c.conn = nil
	}
}

// send makes one request. It returns an error for a status other than 200 and for an incomplete body. After an error the
// next request uses a new connection.
func (c *client) send(ctx context.Context, request []byte) (err error) {
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	resp, err := c.begin(ctx, request)
	if err != nil {
		return err
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

// begin sends the request, on a new connection if there is none, and reads the head of the response.
func (c *client) begin(ctx context.Context, request []byte) (*http.Response, error) {
	if c.conn == nil {
		c.opening <- struct{}{}
		defer func() { <-c.opening }()
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		c.conn, c.reader = conn, bufio.NewReader(conn)
	}
	if err := c.conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, fmt.Errorf("set deadline: %w", err)
	}
	if _, err := c.conn.Write(request); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return nil, fmt.Errorf("read response: %w", err)
	}
	return resp, nil
}

func (c *client) checkComplete(response []byte) error {
	if c.events == 0 {
		if !bytes.HasSuffix(bytes.TrimSpace(response), []byte("}")) {
			return fmt.Errorf("%w: body of %d bytes", errTruncated, len(response))
		}
		return nil
	}
	events := bytes.Count(response, eventEnd) - 1
	if c.events != anyEvents && events != c.events || !bytes.HasSuffix(response, doneEvent) {
		return fmt.Errorf("%w: %d events, ends with %.100q", errTruncated, events, response[max(0, len(response)-100):])
	}
	return nil
}
