package fleet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tidwall/gjson"
)

// watch probes the backend until ctx ends: at the interval, and at once when an attempt has found it wanting.
func (b *Backend) watch(ctx context.Context) {
	ticker := time.NewTicker(b.settings.ProbeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-b.nudge:
		}
		b.probe(ctx)
	}
}

// probe asks the backend how it is. vLLM refuses connections until its model is loaded, so an answer on /health and
// on /v1/models means ready.
func (b *Backend) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, b.settings.ProbeTimeout)
	defer cancel()
	seen := observation{state: Unreachable}
	health, err := b.Get(ctx, "/health")
	switch {
	case err != nil:
		seen.reason = err.Error()
	case health.Status != http.StatusOK:
		seen.reason = fmt.Sprintf("/health answered %d", health.Status)
	default:
		seen = b.look(ctx)
	}
	if ctx.Err() == context.Canceled {
		return // closing says nothing about the backend
	}
	b.observe(seen)
}

// look reads what a healthy backend serves.
func (b *Backend) look(ctx context.Context) observation {
	models, err := b.Get(ctx, "/v1/models")
	if err != nil {
		return observation{state: Unreachable, reason: err.Error()}
	}
	if models.Status >= http.StatusInternalServerError {
		return observation{state: Unreachable, reason: fmt.Sprintf("/v1/models answered %d", models.Status)}
	}
	seen := observation{state: Ready, version: b.Version()}
	for _, m := range gjson.GetBytes(models.Body, "data").Array() {
		if m.Get("id").Str == b.checkpoint {
			seen.maxModelLen = m.Get("max_model_len").Int()
		}
	}
	if state, _ := b.State(); state != Ready || seen.version == "" {
		if version, err := b.Get(ctx, "/version"); err == nil {
			seen.version = gjson.GetBytes(version.Body, "version").Str
		}
	}
	return seen
}

// Answer is a small answer of a backend, read whole.
type Answer struct {
	Status int
	Body   []byte
}

// Get asks the backend for a path, with its key. The body is read up to 1 MiB.
func (b *Backend) Get(ctx context.Context, path string) (Answer, error) {
	return b.ask(ctx, http.MethodGet, path, nil)
}

func (b *Backend) ask(ctx context.Context, method, path string, body io.Reader) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, b.URL(path).String(), body)
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", path, err)
	}
	b.Authorize(req.Header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := b.transport.RoundTrip(req)
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) //nolint:forbidigo // bounded
	if err != nil {
		return Answer{}, fmt.Errorf("read %s: %w", path, err)
	}
	return Answer{Status: resp.StatusCode, Body: text}, nil
}
