package mockvllm

import (
	"context"
	"errors"
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
	Method       string       `json:"method"`
	Path         string       `json:"path"`
	Header       http.Header  `json:"header"`
	Body         RecordedBody `json:"body"`
	Time         time.Time    `json:"time"`
	Disconnected time.Time    `json:"left,omitzero"` // when the client disconnected before the response's end
}

// RecordedBody is a request's body, which is text in JSON.
type RecordedBody []byte

// MarshalText implements encoding.TextMarshaler.
func (b RecordedBody) MarshalText() ([]byte, error) { return b, nil }

// ClientDisconnected reports whether the client disconnected before the response's end.
func (r Recorded) ClientDisconnected() bool { return !r.Disconnected.IsZero() }

type recorder struct {
	mu    sync.Mutex
	kept  []*Recorded
	bytes int
}

// begin records a request. The caller must call end when the handler returns; later disconnects are not recorded.
func (c *recorder) begin(x *exchange) (end func()) {
	record := &Recorded{Method: x.r.Method, Path: x.r.URL.Path, Header: x.r.Header.Clone(), Body: x.body, Time: x.arrived}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(c.kept, record)
	c.bytes += len(record.Body)
	for len(c.kept) > recordedRequests || c.bytes > recordedBytes && len(c.kept) > 1 {
		c.bytes -= len(c.kept[0].Body)
		c.kept = slices.Delete(c.kept, 0, 1)
	}
	return func() {
		cause := context.Cause(x.r.Context())
		if cause == nil || errors.Is(cause, errClosed) || errors.Is(cause, errKilled) {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		record.Disconnected = time.Now()
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
