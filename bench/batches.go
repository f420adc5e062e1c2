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

// batches measures the upload and validation of long lines, the rates of short lines and of live requests of the same body, as
// many at a time, and the latency of one live client, alone and while a batch runs.
func batches(lines int) experiment {
	live := func(name string, connections int) load {
		return load{name: name, connections: connections, path: completionsPath, body: lineBody(shortPrompt)}
	}
	return experiment{name: "batches", columns: []string{liveRequests, inBatch}, once: true, loads: []load{
		{name: fmt.Sprintf("upload and validation of %d lines of 1 KB", lines)},
		live(fmt.Sprintf("%d short lines, %d at a time", lines, linesAtOnce), linesAtOnce),
		live(fmt.Sprintf("one client beside a batch, at a backend that runs %d requests of %v", backendPlaces, backendDelay), 1),
	}, measure: func(ctx context.Context, b *testbed, l *load, column string) (*outcome, error) {
		switch {
		case l.connections == 1:
			return measureBesideBatch(ctx, b, l, column, lines)
		case l.connections == 0 && column == liveRequests:
			return nil, nil
		}
		t, err := b.behindGateway(ctx, gatewayOptions{}, childOptions{})
		if err != nil {
			return nil, err
		}
		if l.connections == 0 {
			return t.validateBatch(ctx, lines)
		}
		if column == liveRequests {
			s, err := t.measure(ctx, l, liveSpan)
			if err != nil {
				return nil, err
			}
			return &outcome{[]figure{{requestRate, s.rate()}}, s.counts}, nil
		}
		id, err := t.startBatch(ctx, lines, shortPrompt)
		began := time.Now()
		if err == nil {
			err = t.awaitBatch(ctx, id, func(status string) bool { return status == "completed" })
		}
		return &outcome{figures: []figure{{requestRate, float64(lines) / time.Since(began).Seconds()}}}, err
	}}
}

// validateBatch measures the upload and validation of a file of long lines.
func (t *target) validateBatch(ctx context.Context, lines int) (*outcome, error) {
	_, before, err := t.process.used()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	id, err := t.startBatch(ctx, lines, strings.Repeat("word ", 160))
	took := time.Since(began)
	if err != nil {
		return nil, err
	}
	peak, err := t.process.peakMemory()
	return &outcome{figures: []figure{{"seconds", took.Seconds()}, {"memory, MB", float64(peak-before) / 1e6}}}, errors.Join(err, t.cancelBatch(ctx, id))
}

func measureBesideBatch(ctx context.Context, b *testbed, l *load, column string, lines int) (o *outcome, err error) {
	t, err := b.behindGateway(ctx, gatewayOptions{}, childOptions{Places: backendPlaces, Delay: backendDelay})
	if err != nil {
		return nil, err
	}
	span := liveSpan
	if column == inBatch {
		id, err := t.startBatch(ctx, lines, shortPrompt)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, t.cancelBatch(ctx, id)) }()
		span = min(span, time.Duration(lines/linesAtOnce)*backendDelay/2) // so that the batch does not end before
	}
	s, err := t.measure(ctx, l, span)
	if err != nil {
		return nil, err
	}
	return &outcome{[]figure{{"latency, p99, ms", micros(s.quantile(0.99)) / 1e3}}, s.counts}, nil
}

var errBatch = errors.New("the batch did not complete")

// object is what the gateway says of a file or a batch.
type object struct {
	ID     string `json:"id"`
	Status string `json:"status"`
}

func (t *target) call(ctx context.Context, method, path, contentType string, body io.Reader) (o object, err error) {
	header := http.Header{"Authorization": {"Bearer " + t.keys[0]}, "Content-Type": {contentType}}
	text, err := fetch(ctx, method, "http://"+t.address+path, header, body)
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return o, nil
}

// startBatch uploads a file of lines with a prompt, creates a batch of it, and waits until it is validated.
func (t *target) startBatch(ctx context.Context, lines int, prompt string) (id string, err error) {
	var form bytes.Buffer // writes to it do not fail
	w := multipart.NewWriter(&form)
	_ = w.WriteField("purpose", "batch")
	to, _ := w.CreateFormFile("file", "lines.jsonl")
	for i := range lines {
		fmt.Fprintf(to, `{"custom_id": "line %d", "method": "POST", "url": %q, "body": %s}`+"\n", i, completionsPath, lineBody(prompt))
	}
	_ = w.Close()
	file, err := t.call(ctx, http.MethodPost, "/v1/files", w.FormDataContentType(), &form)
	if err != nil {
		return "", err
	}
	body := fmt.Sprintf(`{"input_file_id": %q, "endpoint": %q, "completion_window": "24h"}`, file.ID, completionsPath)
	b, err := t.call(ctx, http.MethodPost, "/v1/batches", "application/json", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	return b.ID, t.awaitBatch(ctx, b.ID, func(status string) bool { return status != "validating" })
}

// awaitBatch waits until a batch has a status.
func (t *target) awaitBatch(ctx context.Context, id string, done func(status string) bool) error {
	for {
		b, err := t.call(ctx, http.MethodGet, "/v1/batches/"+id, "application/json", http.NoBody)
		switch {
		case err != nil:
			return err
		case done(b.Status):
			return nil
		case b.Status == "failed", b.Status == "expired":
			return fmt.Errorf("%w: it is %s", errBatch, b.Status)
		case !wait.For(ctx, 10*time.Millisecond):
			return fmt.Errorf("%w: %w", errBatch, context.Cause(ctx))
		}
	}
}

func (t *target) cancelBatch(ctx context.Context, id string) error {
	if _, err := t.call(ctx, http.MethodPost, "/v1/batches/"+id+"/cancel", "application/json", http.NoBody); err != nil {
		return err
	}
	return t.awaitBatch(ctx, id, func(status string) bool { return status == "cancelled" })
}
