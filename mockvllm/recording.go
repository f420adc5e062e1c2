package mockvllm

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"
)

// The recorder drops the oldest requests beyond either limit.
const (
	recordedRequests = 1000
	recordedBytes    = 256 << 20
)

// Recorded is a request as the server received it, byte for byte.
type Recorded struct {
	Method       string
	Path         string
	Header       http.Header
	Body         []byte
	Time         time.Time
	Disconnected time.Time // when the client disconnected before the response's end; zero if it did not
}

// ClientDisconnected reports whether the client disconnected before the response's end.
func (r Recorded) ClientDisconnected() bool { return !r.Disconnected.IsZero() }

// MarshalJSON encodes the body as text.
func (r Recorded) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Method       string      `json:"method"`
		Path         string      `json:"path"`
		Header       http.Header `json:"header"`
		Body         string      `json:"body"`
		Time         time.Time   `json:"time"`
		Disconnected time.Time   `json:"left,omitzero"`
	}{r.Method, r.Path, r.Header, string(r.Body), r.Time, r.Disconnected})
}

type recorder struct {
	mu    sync.Mutex
	kept  []*Recorded
	bytes int
}

func newRecorder() *recorder { return &recorder{} }

// begin records a request. The caller must call end when the handler returns; later disconnects are not recorded.
func (c *recorder) begin(x *exchange) (end func()) {
	record := &Recorded{Method: x.r.Method, Path: x.r.URL.Path, Header: x.r.Header.Clone(), Body: x.body, Time: x.arrived}
	c.keep(record)
	noted := make(chan struct{})
	ctx := x.r.Context()
	stop := context.AfterFunc(ctx, func() {
		defer close(noted)
		if cause := context.Cause(ctx); cause == errClosed || cause == errKilled { //nolint:errorlint // never wrapped
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		record.Disconnected = time.Now()
	})
	return func() {
		if !stop() {
			<-noted
		}
	}
}

func (c *recorder) keep(record *Recorded) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(c.kept, record)
	c.bytes += len(record.Body)
	for len(c.kept) > recordedRequests || c.bytes > recordedBytes && len(c.kept) > 1 {
		c.bytes -= len(c.kept[0].Body)
		c.kept = slices.Delete(c.kept, 0, 1)
	}
}

func (c *recorder) list() []Recorded {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Recorded, len(c.kept))
	for i, record := range c.kept {
		all[i] = *record
	}
	return all
}
