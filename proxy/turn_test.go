package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/admission"
	"basegate/identity"
	"basegate/internal/poll"
	"basegate/quota"
)

// gate is a backend that answers when it is told to.
type gate struct {
	arrived chan string // the prompts, as they come
	open    chan struct{}
}

func newGate() *gate { return &gate{arrived: make(chan string, 1000), open: make(chan struct{}, 1000)} }

func (g *gate) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	g.arrived <- gjson.GetBytes(body, "prompt").Str
	select {
	case <-g.open:
		answers(200, "application/json", plainAnswer)(w, q)
	case <-q.Context().Done():
	}
}

// background asks in a goroutine, and tells when the answer is there.
func (r *rig) background(ctx context.Context, body string) <-chan reply {
	out := make(chan reply, 1)
	req := r.request(ctx, http.MethodPost, "/v1/completions", body)
	go func() {
		defer close(out)
		resp, err := client.Do(req)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil {
			out <- reply{resp.StatusCode, resp.Header, string(text)}
		}
	}()
	return out
}

func (r *rig) wait(what string, want admission.Stats) {
	r.t.Helper()
	poll.Until(r.t, what, func() bool {
		s := r.queue.Stats()
		return s.Running == want.Running && s.Waiting == want.Waiting
	})
}

func prompt(i int) string { return fmt.Sprintf(`{"model":"m","prompt":"p%d"}`, i) }

func atATime(n int) func(*rigOptions) {
	return func(o *rigOptions) { o.settings.ConcurrencyPerKey = n }
}

func TestRequestsOfAKeyComeToTheBackendInOrderSoManyAtATime(t *testing.T) {
	g := newGate()
	r := newRig(t, atATime(2), upstream(t, g.ServeHTTP))
	var all []<-chan reply
	for i := range 6 {
		all = append(all, r.background(t.Context(), prompt(i)))
		r.wait("it came", admission.Stats{Running: min(i+1, 2), Waiting: max(i-1, 0)})
	}
	first := map[string]bool{<-g.arrived: true, <-g.arrived: true}
	if !first["p0"] || !first["p1"] {
		t.Errorf("the first two are %v", first)
	}
	for i := 2; i < 6; i++ {
		g.open <- struct{}{}
		if got := <-g.arrived; got != "p"+strconv.Itoa(i) {
			t.Errorf("%d is %s", i, got)
		}
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	for i, one := range all {
		got := <-one
		if got.status != 200 {
			t.Errorf("%d: %d %s", i, got.status, got.body)
		}
		queued := 0.0
		if _, err := fmt.Sscanf(got.header.Get("Server-Timing"), "queue;dur=%f, upstream;dur=", &queued); err != nil || queued < 0 {
			t.Errorf("%d: %v: %q", i, err, got.header.Get("Server-Timing"))
		}
	}
	if !strings.Contains(r.log.String(), `"queue_ms":`) {
		t.Error("the log does not tell the time in the queue")
	}
}

func TestAClientThatLeavesTheQueueLosesItsPlaceAndPaysNothing(t *testing.T) {
	g := newGate()
	r := newRig(t, atATime(1), upstream(t, g.ServeHTTP))
	first := r.background(t.Context(), prompt(0))
	<-g.arrived
	ctx, leave := context.WithCancel(t.Context())
	gone := r.background(ctx, prompt(1))
	r.wait("one waits", admission.Stats{Running: 1, Waiting: 1})
	last := r.background(t.Context(), prompt(2))
	r.wait("two wait", admission.Stats{Running: 1, Waiting: 2})
	leave()
	<-gone
	r.wait("its place is free", admission.Stats{Running: 1, Waiting: 1})
	g.open <- struct{}{}
	g.open <- struct{}{}
	if a, b := (<-first).status, (<-last).status; a != 200 || b != 200 {
		t.Errorf("got %d and %d", a, b)
	}
	r.rows(2)
	if got := <-g.arrived; got != "p2" {
		t.Errorf("%s was asked for", got)
	}
}

func TestEveryWayOutGivesTheSlotBack(t *testing.T) {
	r := newRig(t, atATime(1), upstream(t, answers(500, "text/plain", "Internal Server Error")))
	for i, body := range []string{
		prompt(1), `{"model":"m","prompt":[1],"max_tokens":1000000}`, `{"model":"m","prompt":"x","stream":true}`,
		`{"model":"m","prompt":"x","max_tokens":0}`,
	} {
		r.complete(body)
		r.wait(fmt.Sprintf("%d gave it back", i), admission.Stats{})
	}
}

func TestTooMuchThatWaitsIsRefused(t *testing.T) {
	g := newGate()
	r := newRig(t, func(o *rigOptions) { o.settings.ConcurrencyPerKey, o.maxBuffered = 1, 100 }, upstream(t, g.ServeHTTP))
	first := r.background(t.Context(), `{"model":"m","prompt":"`+strings.Repeat("x", 200)+`"}`) // does not wait
	<-g.arrived
	second := r.background(t.Context(), prompt(1))
	r.wait("one waits", admission.Stats{Running: 1, Waiting: 1})
	refused := r.complete(`{"model":"m","prompt":"` + strings.Repeat("x", 80) + `"}`)
	if refused.status != 503 || !strings.Contains(refused.body, `"overloaded"`) || refused.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s %v", refused.status, refused.body, refused.header)
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	if a, b := (<-first).status, (<-second).status; a != 200 || b != 200 {
		t.Errorf("got %d and %d", a, b)
	}
}

// What can be told at once waits for nothing; what takes the tokenizer or a reservation comes behind the queue.
func TestTheOrderOfJudgementAroundTheQueue(t *testing.T) {
	g := newGate()
	r := newRig(t, atATime(1), upstream(t, g.ServeHTTP))
	r.setKey(limits(func(c *quota.Caps) { c.MonthInput = quota.Limit(10) }))
	running := r.background(t.Context(), `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":1}`)
	<-g.arrived
	for body, code := range map[string]string{
		`{`: "bad_json", `{"model":"m","prompt":"x","n":0}`: "invalid_request", `{"model":"other","prompt":"x"}`: "model_not_found",
	} {
		if got := r.complete(body); !strings.Contains(got.body, `"`+code+`"`) {
			t.Errorf("%s: got %s", body, got.body)
		}
	}
	tooLong := r.background(t.Context(), `{"model":"m","prompt":[1],"max_tokens":1000000}`)
	r.wait("it waits, too long as it is", admission.Stats{Running: 1, Waiting: 1})
	g.open <- struct{}{}
	<-running
	if got := <-tooLong; !strings.Contains(got.body, `"context_length_exceeded"`) {
		t.Errorf("length goes before budget, but got %s", got.body)
	}
	r.setKey(limits(func(c *quota.Caps) { c.MonthInput = quota.Limit(0) }))
	running = r.background(t.Context(), prompt(0))
	if got := <-running; got.status != 429 || !strings.Contains(got.body, `"meter":"input"`) {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

// What is only reserved by others refuses nobody: who finds too little left waits until they have settled.
func TestReservationsOfOthersMakeARequestWaitAndNotFail(t *testing.T) {
	g := newGate()
	r := newRig(t, nil, upstream(t, g.ServeHTTP))
	r.setKey(limits(func(c *quota.Caps) { c.MonthTotal = quota.Limit(100) }))
	ask := `{"model":"m","prompt":[1,2,3,4],"max_tokens":60}`
	first := r.background(t.Context(), ask)
	<-g.arrived
	second := r.background(t.Context(), ask)
	r.wait("both have a slot", admission.Stats{Running: 2})
	select {
	case <-g.arrived:
		t.Error("both were sent, which may pass the cap")
	case got := <-second:
		t.Errorf("it was refused: %d %s", got.status, got.body)
	case <-time.NewTimer(50 * time.Millisecond).C:
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	for _, one := range []<-chan reply{first, second} {
		if got := <-one; got.status != 200 || got.header.Get("X-Acs-Max-Tokens-Clamped") != "" {
			t.Errorf("got %d %v", got.status, got.header)
		}
	}
}

func TestWhoWaitsForReservationsCountsAsWaiting(t *testing.T) {
	g := newGate()
	ask := `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":5}`
	r := newRig(t, func(o *rigOptions) { o.maxBuffered = int64(len(ask)) }, upstream(t, g.ServeHTTP))
	r.setKey(limits(func(c *quota.Caps) { c.MonthTotal = quota.Limit(29) }))
	first := r.background(t.Context(), ask)
	<-g.arrived
	second := r.background(t.Context(), ask)
	poll.Until(t, "it waits", func() bool { return r.queue.Stats().BufferedBytes == int64(len(ask)) })
	if got := r.complete(ask); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"overloaded"`) {
		t.Errorf("one too many gets %d %s", got.status, got.body)
	}
	g.open <- struct{}{}
	g.open <- struct{}{}
	for _, one := range []<-chan reply{first, second} {
		if got := <-one; got.status != http.StatusOK {
			t.Errorf("got %d %s", got.status, got.body)
		}
	}
	if s := r.queue.Stats(); s.BufferedBytes != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAKeyThatIsPausedWhileItWaitsIsRefused(t *testing.T) {
	g := newGate()
	r := newRig(t, atATime(1), upstream(t, g.ServeHTTP))
	first := r.background(t.Context(), prompt(0))
	<-g.arrived
	second := r.background(t.Context(), prompt(1))
	r.wait("one waits", admission.Stats{Running: 1, Waiting: 1})
	all, err := r.keys.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.keys.Pause(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	<-time.NewTimer(1100 * time.Millisecond).C // a shorter wait is not looked at again
	g.open <- struct{}{}
	if got := (<-first).status; got != 200 {
		t.Errorf("the one that ran: %d", got)
	}
	if got := <-second; got.status != 401 {
		t.Errorf("the one that waited: %d %s", got.status, got.body)
	}
	r.wait("no slot is held", admission.Stats{})
}

func TestAKeysOwnConcurrencyGoesBeforeTheConfigured(t *testing.T) {
	g := newGate()
	r := newRig(t, atATime(1), upstream(t, g.ServeHTTP))
	r.setKey(func(f *identity.KeyFields) { f.Concurrency = 3 })
	var all sync.WaitGroup
	for i := range 4 {
		one := r.background(t.Context(), prompt(i))
		all.Go(func() { <-one })
	}
	r.wait("three run", admission.Stats{Running: 3, Waiting: 1})
	for range 4 {
		g.open <- struct{}{}
	}
	all.Wait()
}

// Bodies on their way count with what waits: each may unpack to the limit of its size, and many may come at once.
func TestBodiesOnTheirWayAreBounded(t *testing.T) {
	r := newRig(t, func(o *rigOptions) { o.maxBuffered = 256 << 10 }, upstream(t, answers(200, "application/json", plainAnswer)))
	large := `{"model":"m","prompt":"` + strings.Repeat("x", 400<<10) + `"}`
	for _, encoding := range []string{"", "gzip"} {
		body := large
		if encoding != "" {
			body = gzipped(t, large)
		}
		req := r.request(t.Context(), http.MethodPost, "/v1/completions", body)
		req.Header.Set("Content-Encoding", encoding)
		if got := r.do(req); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"code":"overloaded"`) {
			t.Errorf("%q: %d %s", encoding, got.status, got.body)
		}
	}
	if s := r.queue.Stats(); s.BufferedBytes != 0 || s.Refused != 2 {
		t.Errorf("%+v", s)
	}
	if got := r.do(r.request(t.Context(), http.MethodPost, "/v1/completions", `{"model":"m","prompt":"`+strings.Repeat("x", 100<<10)+`"}`)); got.status != http.StatusOK {
		t.Errorf("%d %s", got.status, got.body)
	}
}
