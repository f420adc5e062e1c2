package proxy

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierr "basegate/errors"
)

// Limits of X-Acs-Keepalive, in seconds.
const (
	minKeepalive = 5
	maxKeepalive = 60
)

// keepalive sends comments to a client in the silences of a stream, which has begun before its first event, so that no proxy in
// between closes the connection. A comment is one line, without a blank line behind it: some clients take that for an event
// without data.
type keepalive struct {
	interval time.Duration // 0: off
	known    http.Header   // the header that has been sent

	mu      sync.Mutex // guards every field below, and the response while it waits
	timer   *time.Timer
	stopped bool
	comment func() string // what the request waits for
}

// keepaliveOf returns the interval that the request asks for; 0 if it does not.
func keepaliveOf(r *http.Request) time.Duration {
	seconds, err := strconv.Atoi(r.Header.Get("X-Acs-Keepalive"))
	if err != nil || seconds < minKeepalive || seconds > maxKeepalive {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// beginKeepalive sends status and header of a stream whose client asks for it, and comments from then on. After it, every
// error is an event. Until stop returns, nothing else may be sent.
func (s *Server) beginKeepalive(x *exchange) error {
	interval := keepaliveOf(x.r)
	if interval == 0 || !x.request.Stream {
		return nil
	}
	s.setHeaders(x, "")
	h := x.w.Header()
	h.Del("Server-Timing") // not known yet
	x.extendWriteDeadline()
	x.sendStreamHead("text/event-stream; charset=utf-8")
	k := &x.delivery.keepalive
	k.interval, k.known = interval, h.Clone()
	if http.NewResponseController(x.w).Flush() != nil {
		return errClientGone
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.comment = waitingForFirstEvent
	k.timer = time.AfterFunc(interval, func() { k.send(x) })
	return nil
}

// waitingFor sets what the comments say.
func (k *keepalive) waitingFor(comment func() string) {
	if k.interval == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.comment = comment
}

// send sends a comment. It sets the write deadline behind the next comment, and lets the next event set it anew. If the
// client has disconnected, the request's context ends.
func (k *keepalive) send(x *exchange) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return
	}
	control := http.NewResponseController(x.w)
	control.SetWriteDeadline(time.Now().Add(max(k.interval, x.settings.IdleTimeout) + writeSlack))
	x.delivery.deadlineSetAt = time.Time{}
	if _, err := fmt.Fprintf(x.w, ": %s\n", k.comment()); err != nil || control.Flush() != nil {
		return
	}
	k.timer.Reset(k.interval)
}

// hold keeps comments back while the caller uses the response, until release: the next one follows an interval later.
func (k *keepalive) hold() {
	if k.interval == 0 {
		return
	}
	k.mu.Lock()
	if k.timer != nil && !k.stopped {
		k.timer.Reset(k.interval)
	}
}

func (k *keepalive) release() {
	if k.interval > 0 {
		k.mu.Unlock()
	}
}

// stop stops the comments, and waits for one that is being sent. It may be called more than once.
func (k *keepalive) stop() {
	k.hold()
	defer k.release()
	if k.stopped = true; k.timer != nil {
		k.timer.Stop()
	}
}

func (k *keepalive) resume(comment func() string) {
	if k.interval == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.comment, k.stopped = comment, false
	k.timer.Reset(k.interval)
}

// lateHeaders returns the headers that were not known when the header was sent, as comments; nil without keepalive.
func (s *Server) lateHeaders(x *exchange, e *apierr.Error) []byte {
	if x.delivery.keepalive.interval == 0 || x.charge.stream != nil {
		return nil
	}
	h := x.w.Header()
	if e != nil {
		e.SetHeaders(h)
		s.setHeaders(x, e.Code)
	} else {
		s.setHeaders(x, "")
	}
	var comments bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if _, sent := x.delivery.keepalive.known[name]; !sent {
			fmt.Fprintf(&comments, ": %s %s\n", strings.ToLower(strings.TrimPrefix(name, "X-Acs-")), h.Get(name))
		}
	}
	return comments.Bytes()
}

func (x *exchange) bootComment() string {
	b := x.model.Boot()
	if b == nil {
		return "booting"
	}
	if b.Estimate <= 0 {
		return fmt.Sprintf("booting, %.0f s", b.Elapsed.Seconds())
	}
	return fmt.Sprintf("booting, %.0f of about %.0f s", b.Elapsed.Seconds(), b.Estimate.Seconds())
}

func waitingForBudget() string     { return "queued for the budget" }
func waitingForTurn() string       { return "queued, the model is full" }
func waitingForFirstEvent() string { return "waiting for the first token" }
func waitingForNextEvent() string  { return "waiting for the next token" }
