package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"time"

	"basegate/internal/wait"
)

const (
	linesAtOnce = 64 // the default of batches.per_backend
	liveSpan    = 5 * time.Second

	// The backend beside whose batch a live client is measured: how many requests it runs, and how long each takes.
	backendPlaces = 256
	backendDelay  = 20 * time.Millisecond

	shortPrompt = "Once upon a time"
)

func lineBody(prompt string) []byte {
	return fmt.Appendf(nil, `{"model": %q, "prompt": %q, "max_tokens": 16}`, model, prompt)
}

// batchLoads are the upload and validation of long lines, short lines beside live requests of the same body, as many at a
// time, and one live client, alone and while a batch runs.
func batchLoads(lines int) []load {
	live := load{lines: lines, path: completionsPath, body: lineBody(shortPrompt)}
	upload, rate, latency := live, live, live
	upload.name = fmt.Sprintf("upload and validation of %d lines of 1 KB", lines)
	rate.name, rate.connections = fmt.Sprintf("%d short lines, %d at a time", lines, linesAtOnce), linesAtOnce
	latency.name = fmt.Sprintf("one client beside a batch, at a backend that runs %d requests of %v", backendPlaces, backendDelay)
	latency.connections = 1
	return []load{upload, rate, latency}
}

func measureBatch(ctx context.Context, b *testbed, l *load, column string) *outcome {
	if l.connections == 1 {
		return measureBesideBatch(ctx, b, l, column)
	}
	t := b.behindGateway(ctx, gatewayOptions{}, childOptions{})
	switch {
	case l.connections == 0 && column == liveRequests:
		return nil
	case l.connections == 0:
		return t.validateBatch(ctx, l.lines)
	case column == liveRequests:
		s := t.measure(ctx, l, liveSpan)
		return &outcome{[]figure{{requestRate, s.rate()}}, s.counts}
	}
	id := t.startBatch(ctx, l.lines, shortPrompt)
	began := time.Now()
	t.awaitBatch(ctx, id, "completed")
	return &outcome{figures: []figure{{requestRate, float64(l.lines) / time.Since(began).Seconds()}}}
}

// validateBatch measures the upload and validation of a file of long lines.
func (t *target) validateBatch(ctx context.Context, lines int) *outcome {
	before, began := t.process.memory(), time.Now()
	id := t.startBatch(ctx, lines, strings.Repeat("word ", 160))
	took, peak := time.Since(began), t.process.peakMemory()
	t.cancelBatch(ctx, id)
	return &outcome{figures: []figure{{"seconds", took.Seconds()}, {"memory, MB", (peak - before) / 1e6}}}
}

func measureBesideBatch(ctx context.Context, b *testbed, l *load, column string) *outcome {
	t := b.behindGateway(ctx, gatewayOptions{}, childOptions{Places: backendPlaces, Delay: backendDelay})
	span := liveSpan
	if column == inBatch {
		id := t.startBatch(ctx, l.lines, shortPrompt)
		defer t.cancelBatch(ctx, id)
		span = min(span, time.Duration(l.lines/linesAtOnce)*backendDelay/2) // so that the batch does not end before
	}
	s := t.measure(ctx, l, span)
	return &outcome{[]figure{{"latency, p99, ms", micros(s.quantile(0.99)) / 1e3}}, s.counts}
}

var errBatch = errors.New("the batch did not complete")

// object is what the gateway says of a file or a batch.
type object struct{ ID, Status string }

func (t *target) call(ctx context.Context, method, path, contentType string, body io.Reader) (o object) {
	header := http.Header{"Authorization": {"Bearer " + t.keys[0]}, "Content-Type": {contentType}}
	check(json.Unmarshal(must(fetch(ctx, method, "http://"+t.address+path, header, body)), &o))
	return o
}

// startBatch uploads a file of lines with a prompt, creates a batch of it, and waits until it is validated.
func (t *target) startBatch(ctx context.Context, lines int, prompt string) (id string) {
	var form bytes.Buffer // writes to it do not fail
	w := multipart.NewWriter(&form)
	_ = w.WriteField("purpose", "batch")
	to, _ := w.CreateFormFile("file", "lines.jsonl")
	for i := range lines {
		fmt.Fprintf(to, `{"custom_id": "line %d", "method": "POST", "url": %q, "body": %s}`+"\n", i, completionsPath, lineBody(prompt))
	}
	_ = w.Close()
	file := t.call(ctx, http.MethodPost, "/v1/files", w.FormDataContentType(), &form)
	body := fmt.Sprintf(`{"input_file_id": %q, "endpoint": %q, "completion_window": "24h"}`, file.ID, completionsPath)
	b := t.call(ctx, http.MethodPost, "/v1/batches", "application/json", strings.NewReader(body))
	t.awaitBatch(ctx, b.ID, "in_progress", "finalizing", "completed")
	return b.ID
}

func (t *target) awaitBatch(ctx context.Context, id string, statuses ...string) {
	for {
		b := t.call(ctx, http.MethodGet, "/v1/batches/"+id, "application/json", http.NoBody)
		switch {
		case slices.Contains(statuses, b.Status):
			return
		case b.Status == "failed", b.Status == "expired":
			check(fmt.Errorf("%w: it is %s", errBatch, b.Status))
		case !wait.For(ctx, 10*time.Millisecond):
			check(fmt.Errorf("%w: %w", errBatch, context.Cause(ctx)))
		}
	}
}

func (t *target) cancelBatch(ctx context.Context, id string) {
	t.call(ctx, http.MethodPost, "/v1/batches/"+id+"/cancel", "application/json", http.NoBody)
	t.awaitBatch(ctx, id, "cancelled")
}
