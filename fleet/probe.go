package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/tidwall/gjson"

	"basegate/breaker"
	"basegate/internal/wait"
	"basegate/validate"
)

// startingProbeInterval is the probe interval of a starting backend, if the configured one is not shorter. The measured
// boot time, which the next clients get as an estimate, is accurate to this interval.
const startingProbeInterval = 100 * time.Millisecond

// probeUntil probes the backend at the probe interval, and at once after probeSoon, until ctx ends or removed is closed. It
// reads the queue of a busy backend in between.
func (b *Backend) probeUntil(ctx context.Context, removed <-chan struct{}) {
	timer := time.NewTimer(b.settings.ProbeInterval)
	defer timer.Stop()
	defer b.turns.open()
	due := time.Now().Add(b.settings.ProbeInterval)
	for {
		probes := true
		select {
		case <-ctx.Done():
			return
		case <-removed:
			return
		case <-b.queueNow:
			probes = false
		case <-timer.C:
			probes = !time.Now().Before(due)
		case <-b.probeNow:
		}
		if probes {
			b.probe(ctx)
			due = time.Now().Add(b.probeInterval())
		}
		next := time.Until(due)
		if b.watchesQueue() {
			b.readQueue(ctx)
			next = min(time.Until(due), b.queueInterval())
		}
		timer.Reset(next)
	}
}

func (b *Backend) probeInterval() time.Duration {
	interval := b.settings.ProbeInterval
	if b.is(Starting) {
		interval = min(interval, startingProbeInterval)
	}
	if b.listening.decides() {
		interval = min(interval, refusedProbeInterval)
	}
	return interval
}

func (b *Backend) readQueue(ctx context.Context) {
	if !b.is(Ready) {
		b.turns.open()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, b.settings.ProbeTimeout)
	defer cancel()
	b.probeQueue(ctx)
}

func (b *Backend) readQueueSoon() { wait.Wake(b.queueNow) }

func (b *Backend) probeSoon() { wait.Wake(b.probeNow) }

func (b *Backend) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, b.settings.ProbeTimeout)
	defer cancel()
	b.mu.Lock()
	before := b.life.changes
	b.mu.Unlock()
	e, reason, err := b.checkHealth(ctx, before)
	if errors.Is(ctx.Err(), context.Canceled) || breaker.IsLocalFault(err) {
		return // the gateway is stopping, or cannot connect to anything: the result says nothing about the backend
	}
	b.listening.observe(isRefused(err), b.clock())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.changes != before {
		b.probeSoon() // the state changed during the probe, so the result may be outdated
		return
	}
	b.life.probeFailed = b.life.probeFailed || e == eventUnreachable
	if !b.transition(e, reason) && e == eventUnreachable && b.life.state == Unreachable {
		b.life.reason = reason
	}
}

// checkHealth returns the event that the backend's responses amount to, with a reason and the error that it comes from, if any, and
// updates the info of a server that is ready: vLLM refuses connections until its model is loaded, but responds while it sleeps.
// /v1/models requires the key. changes is the number of the state's changes before the probe.
func (b *Backend) checkHealth(ctx context.Context, changes int64) (e event, reason string, err error) {
	compared := false
	defer func() {
		if !compared {
			b.forgetMismatch()
		}
	}()
	if b.unplaced() {
		return eventUnreachable, errNoAddress.Error(), errNoAddress
	}
	switch _, err = b.read(ctx, "/health"); {
	case err != nil:
		return eventUnreachable, err.Error(), err
	case b.cfg().Sleep != nil && b.isSleeping(ctx):
		return eventSleeping, "it sleeps", nil
	}
	adapterChanges := b.adapterChanges()
	models, err := b.read(ctx, "/v1/models")
	if err != nil {
		return eventUnreachable, err.Error(), err
	}
	served := gjson.GetBytes(models, "data")
	difference, usable := b.compareServed(served)
	b.setMismatch(difference, usable)
	compared = true
	if !usable {
		return eventUnreachable, difference, nil
	}
	state, _ := b.State()
	restarted := state != Ready && state != Draining // a server that drains is the one that was ready
	b.observeAdapters(served, adapterChanges, restarted)
	if restarted {
		b.beginCache(ctx, state == Unreachable)
	}
	b.updateInfo(ctx, served, restarted, changes)
	return eventAnswered, "", nil
}

func (b *Backend) isSleeping(ctx context.Context) bool {
	response, err := b.Get(ctx, "/is_sleeping")
	return err == nil && gjson.GetBytes(response.Body, "is_sleeping").Bool()
}

// updateInfo stores what the backend reports about itself. The version, the special tokens and the template do not
// change while the server runs, so it queries them only if they are unknown or the server may have been restarted.
func (b *Backend) updateInfo(ctx context.Context, models gjson.Result, restarted bool, changes int64) {
	info := *b.info.Load()
	if restarted {
		info.source = sourceOf(b.checkpoint, b.cfg())
		info.server, info.describeTries, info.versionKnown = validate.Server{Version: info.server.Version}, 0, false
	}
	for _, m := range models.Array() {
		if m.Get("id").Str == b.checkpoint {
			info.maxModelLen = contextOf(m, models)
		}
	}
	if restarted {
		b.lacksLogprobs.Store(false)
		b.firstToken.Store(nil)
	}
	if !info.versionKnown {
		if version, err := b.Get(ctx, "/version"); err == nil {
			info.version = gjson.GetBytes(version.Body, "version").Str
			info.server.Version = validate.ParseVersion(info.version)
			info.server.Rust = gjson.GetBytes(version.Body, "rust_frontend_version").Exists()
			info.versionKnown = info.version != ""
		}
	}
	if restarted || !info.specialKnown {
		with, errWith := b.CountTokens(ctx, "a", true)
		without, errWithout := b.CountTokens(ctx, "a", false)
		if errWith == nil && errWithout == nil {
			info.specialTokens, info.specialKnown = max(with-without, 0), true
		}
	}
	if b.chat && (restarted || !info.template.known) {
		measured := b.measureTemplate(ctx)
		b.logTemplate(info.template, measured)
		info.template = measured
	}
	if info.describeTries < maxDescribeTries {
		b.describe(ctx, &info)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.changes == changes { // else the server may have stopped since, and another one is to be started
		b.recordReport(&info)
	}
}

// contextOf returns the context length of a model. vLLM reports none of a LoRA adapter, whose own is that of its parent.
func contextOf(model, models gjson.Result) int64 {
	length := model.Get("max_model_len")
	if parent := model.Get("parent").Str; length.Type != gjson.Number && parent != "" {
		for _, m := range models.Array() {
			if m.Get("id").Str == parent {
				return m.Get("max_model_len").Int()
			}
		}
	}
	return length.Int()
}

// describeTimeout limits the wait for the OpenAPI document of a server, which takes vLLM a second at first, and
// maxDescribeTries how often it is waited for. A probe waits for it before its server becomes ready, with or without it.
const (
	describeTimeout  = 2 * time.Second
	maxDescribeTries = 3
)

// describe asks the server for its OpenAPI document. vLLM has none with --disable-fastapi-docs, or with its Rust frontend.
func (b *Backend) describe(ctx context.Context, info *serverInfo) {
	if ctx.Err() != nil {
		return // the rest of the probe took all its time, so the server is not asked
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	info.describeTries++
	document, err := b.Get(ctx, "/openapi.json")
	if err != nil {
		return
	}
	info.describeTries = maxDescribeTries
	if document.Status == http.StatusOK {
		info.server.Describe(document.Body)
	}
}

// maxResponseBody limits a Response, in bytes.
const maxResponseBody = 1 << 20

// Response is the response of a backend to a request of the gateway itself.
type Response struct {
	Status int
	Body   []byte // cut at 1 MiB, or as the caller says
}

// Get requests a path from the backend, with its API key.
func (b *Backend) Get(ctx context.Context, path string) (Response, error) {
	return b.do(ctx, http.MethodGet, b.URL(path), nil, maxResponseBody)
}

// read returns the body of a response that must be 200.
func (b *Backend) read(ctx context.Context, path string) ([]byte, error) {
	response, err := b.Get(ctx, path)
	if err == nil && response.Status != http.StatusOK {
		err = fmt.Errorf("%s answered %d", path, response.Status)
	}
	return response.Body, err
}

// Post sends a JSON body to a path.
func (b *Backend) Post(ctx context.Context, path string, body []byte) (Response, error) {
	return b.do(ctx, http.MethodPost, b.URL(path), bytes.NewReader(body), maxResponseBody)
}

// do sends a request with the backend's API key. A body must be JSON. Requests without one, probes for example, have a new connection
// each: that a pooled one has just been closed would say nothing about the backend.
func (b *Backend) do(ctx context.Context, method string, address *url.URL, body io.Reader, most int64) (Response, error) {
	path := address.Path
	req, err := http.NewRequestWithContext(ctx, method, address.String(), body)
	if err != nil {
		return Response{}, fmt.Errorf("request %s: %w", path, err)
	}
	req.Close = body == nil
	b.Authorize(req.Header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := b.fleet.transport.RoundTrip(req)
	if err != nil {
		return Response{}, fmt.Errorf("request %s: %w", path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return Response{}, fmt.Errorf("read %s: %w", path, err)
	}
	return Response{Status: resp.StatusCode, Body: text}, nil
}
