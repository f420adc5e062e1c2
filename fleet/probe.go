package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/tidwall/gjson"
)

// startingInterval is how often a backend is asked that is starting: what it took is told to the next who waits.
const startingInterval = 100 * time.Millisecond

// watch probes the backend until ctx ends or it is gone: at the interval, and at once when an attempt has found it wanting.
func (b *Backend) watch(ctx context.Context, gone <-chan struct{}) {
	timer := time.NewTimer(b.settings.ProbeInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-gone:
			return
		case <-timer.C:
		case <-b.nudge:
		}
		b.probe(ctx)
		next := b.settings.ProbeInterval
		if state, _ := b.State(); state == Starting {
			next = min(next, startingInterval)
		}
		timer.Reset(next)
	}
}

// probeSoon asks for a probe at once.
func (b *Backend) probeSoon() {
	select {
	case b.nudge <- struct{}{}:
	default:
	}
}

// probe asks the backend how it is. vLLM refuses connections until its model is loaded, so an answer on /health and
// on /v1/models means ready; only one that sleeps answers too.
func (b *Backend) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, b.settings.ProbeTimeout)
	defer cancel()
	b.mu.Lock()
	before := b.life.changes
	b.mu.Unlock()
	e, reason := b.look(ctx)
	if errors.Is(ctx.Err(), context.Canceled) {
		return // closing says nothing about the backend
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.changes != before {
		b.probeSoon() // what was seen may have been before it was stopped, or started
		return
	}
	if !b.pass(e, reason) && e == silent && b.life.state == Unreachable {
		b.life.reason = reason
	}
}

// look finds out how the backend is, and why, and reads what a healthy one serves.
func (b *Backend) look(ctx context.Context) (e event, reason string) {
	health, err := b.Get(ctx, "/health")
	switch {
	case err != nil:
		return silent, err.Error()
	case health.Status != http.StatusOK:
		return silent, fmt.Sprintf("/health answered %d", health.Status)
	case b.policy().Sleep != nil && b.sleeps(ctx):
		return sleeping, "it sleeps"
	}
	models, err := b.Get(ctx, "/v1/models")
	if err != nil {
		return silent, err.Error()
	}
	if models.Status >= http.StatusInternalServerError {
		return silent, fmt.Sprintf("/v1/models answered %d", models.Status)
	}
	state, _ := b.State()
	b.learn(ctx, gjson.GetBytes(models.Body, "data"), state != Ready)
	return answered, ""
}

func (b *Backend) sleeps(ctx context.Context) bool {
	answer, err := b.Get(ctx, "/is_sleeping")
	return err == nil && gjson.GetBytes(answer.Body, "is_sleeping").Bool()
}

// learn takes over what the backend says of itself. What does not change while it runs is asked once.
func (b *Backend) learn(ctx context.Context, models gjson.Result, anew bool) {
	seen := *b.seen.Load()
	for _, m := range models.Array() {
		if m.Get("id").Str == b.checkpoint {
			seen.maxModelLen = m.Get("max_model_len").Int()
		}
	}
	if anew || seen.version == "" {
		if version, err := b.Get(ctx, "/version"); err == nil {
			seen.version = gjson.GetBytes(version.Body, "version").Str
		}
	}
	if anew || !seen.counted {
		with, err := b.CountTokens(ctx, "a", true)
		without, failed := b.CountTokens(ctx, "a", false)
		if err == nil && failed == nil {
			seen.special, seen.counted = max(with-without, 0), true
		}
	}
	b.seen.Store(&seen)
}

// Response is a small answer of a backend, read whole.
type Response struct {
	Status int
	Body   []byte
}

// Get asks the backend for a path, with its key. The body is read up to 1 MiB.
func (b *Backend) Get(ctx context.Context, path string) (Response, error) {
	return b.ask(ctx, http.MethodGet, path, nil)
}

func (b *Backend) ask(ctx context.Context, method, path string, body io.Reader) (Response, error) {
	return b.send(ctx, method, b.URL(path), body)
}

func (b *Backend) send(ctx context.Context, method string, address *url.URL, body io.Reader) (Response, error) {
	path := address.Path
	req, err := http.NewRequestWithContext(ctx, method, address.String(), body)
	if err != nil {
		return Response{}, fmt.Errorf("ask %s: %w", path, err)
	}
	b.Authorize(req.Header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := b.transport.RoundTrip(req)
	if err != nil {
		return Response{}, fmt.Errorf("ask %s: %w", path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) //nolint:forbidigo // bounded
	if err != nil {
		return Response{}, fmt.Errorf("read %s: %w", path, err)
	}
	return Response{Status: resp.StatusCode, Body: text}, nil
}
