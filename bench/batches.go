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
	"strconv"
	"strings"
	"sync"
	"time"
)

// batchFigures are the figures of a batch, and of live requests of the same body in the same run.
type batchFigures struct {
	lines             int
	validated         time.Duration // from the beginning of the upload to in_progress
	memory            int64         // resident memory that upload and validation took, in bytes
	batchRate         float64       // lines a second
	liveRate          float64       // requests a second
	aloneP99, sideP99 time.Duration // of one live client, alone and beside the batch
}

// String returns the figures as a sentence.
func (f *batchFigures) String() string {
	return fmt.Sprintf("a batch of %d lines of 1 KB: %.2f s to upload and validate, with %.0f MB of memory; %.0f short lines a second, %.2f of live requests, %d of either at a time; "+
		"the p99 of one live client beside it, at a backend that runs %d requests of %v, is %.1f ms, %.2f of that alone",
		f.lines, f.validated.Seconds(), float64(f.memory)/1e6, f.batchRate, f.batchRate/f.liveRate, linesAtOnce,
		backendPlaces, backendDelay, f.sideP99.Seconds()*1e3, float64(f.sideP99)/float64(f.aloneP99))
}

const (
	batchLines      = 50_000
	batchLinesShort = 2_000
	batchTimeout    = 5 * time.Minute
	liveSpan        = 5 * time.Second
	linesAtOnce     = 64 // the default of batches.per_backend

	// The backend beside whose batch a live client is measured: how many requests it runs, and how long each takes.
	backendPlaces = 256
	backendDelay  = 20 * time.Millisecond
)

var errBatch = errors.New("the batch did not complete")

// measureBatch measures the validation of long lines, the rates of short ones and of live requests, and the latency of a
// live client beside a batch.
func measureBatch(ctx context.Context, p programs, short bool) (f *batchFigures, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	f = &batchFigures{lines: batchLines}
	if short {
		f.lines = batchLinesShort
	}
	for _, m := range []struct {
		upstream []string
		measure  func(context.Context, target) error
	}{{nil, f.measureRates}, {[]string{"-places", strconv.Itoa(backendPlaces), "-delay", backendDelay.String()}, f.measureBeside}} {
		if err := withGateway(ctx, p, m.upstream, m.measure); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// withGateway runs a measurement of a gateway in front of an upstream with these flags.
func withGateway(ctx context.Context, p programs, upstream []string, measure func(context.Context, target) error) (err error) {
	b, err := newTestbed(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.addUpstream(ctx, upstream...); err != nil {
		return err
	}
	g, _, err := b.startGateway(ctx, unlimited)
	if err != nil {
		return err
	}
	return measure(ctx, g)
}

const shortLine = `{"model": "` + model + `", "prompt": "Once upon a time", "max_tokens": 16}`

// measureRates measures the validation of a file of long lines, and then the rate of short lines and that of live requests
// of the same body, as many at a time.
func (f *batchFigures) measureRates(ctx context.Context, g target) error {
	before, err := g.process.residentMemory()
	if err != nil {
		return err
	}
	stopWatching := watchMemory(ctx, g.process)
	began := time.Now()
	id, err := g.startBatch(ctx, f.lines, strings.Repeat("word ", 160))
	if err != nil {
		return err
	}
	f.validated, f.memory = time.Since(began), stopWatching()-before
	if err := g.cancelBatch(ctx, id); err != nil {
		return err
	}
	live, err := measureLive(ctx, g, linesAtOnce, liveSpan)
	if err != nil {
		return err
	}
	f.liveRate = float64(live.complete) / live.wall.Seconds()
	if id, err = g.startBatch(ctx, f.lines, "Once upon a time"); err != nil {
		return err
	}
	began = time.Now()
	if err := g.awaitBatch(ctx, id, func(status string) bool { return status == "completed" }); err != nil {
		return err
	}
	f.batchRate = float64(f.lines) / time.Since(began).Seconds()
	return nil
}

// measureLive measures live requests of the body of a short line. The error is that of a request if one has failed.
func measureLive(ctx context.Context, g target, connections int, span time.Duration) (*loadResult, error) {
	live := workload{name: "live requests", connections: connections, path: completionsPath, body: []byte(shortLine)}
	m, err := measure(ctx, g, live, span)
	if err == nil && m.failed+m.truncated > 0 {
		err = m.exampleErr
	}
	return m, err
}

// measureBeside measures the latency of one live client, alone and while a batch runs.
func (f *batchFigures) measureBeside(ctx context.Context, g target) error {
	alone, err := measureLive(ctx, g, 1, liveSpan)
	if err != nil {
		return err
	}
	id, err := g.startBatch(ctx, f.lines, "Once upon a time")
	if err != nil {
		return err
	}
	beside, err := measureLive(ctx, g, 1, min(liveSpan, time.Duration(f.lines/linesAtOnce)*backendDelay/2))
	if err != nil {
		return err
	}
	f.aloneP99, f.sideP99 = alone.p99, beside.p99
	return g.cancelBatch(ctx, id)
}

// watchMemory returns a function that ends the watch and returns the largest resident memory of a process, in bytes.
func watchMemory(ctx context.Context, p *process) (stop func() int64) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	var largest int64
	watch.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			if now, err := p.residentMemory(); err == nil {
				largest = max(largest, now)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() int64 {
		cancel()
		watch.Wait()
		return largest
	}
}

// call sends a request to the gateway and decodes its response.
func (t *target) call(ctx context.Context, method, path, contentType string, body io.Reader, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+t.address+path, body)
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+t.key)
	req.Header.Set("Content-Type", contentType)
	resp, err := http.DefaultClient.Do(req) //nolint:forbidigo // a client of the benchmark
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) //nolint:forbidigo // bounded
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s %s: %d %s", errBatch, method, path, resp.StatusCode, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

type batchState struct {
	ID     string `json:"id"`
	Status string `json:"status"`
}

// startBatch uploads a file of lines with a prompt, creates a batch of it, and waits until it is validated.
func (t *target) startBatch(ctx context.Context, lines int, prompt string) (id string, err error) {
	r, w := io.Pipe()
	form := multipart.NewWriter(w)
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { w.CloseWithError(writeLines(form, lines, prompt)) })
	var file batchState
	if err := t.call(ctx, http.MethodPost, "/v1/files", form.FormDataContentType(), r, &file); err != nil {
		r.CloseWithError(err)
		return "", err
	}
	var b batchState
	body := fmt.Sprintf(`{"input_file_id": %q, "endpoint": %q, "completion_window": "24h"}`, file.ID, completionsPath)
	if err := t.call(ctx, http.MethodPost, "/v1/batches", "application/json", strings.NewReader(body), &b); err != nil {
		return "", err
	}
	return b.ID, t.awaitBatch(ctx, b.ID, func(status string) bool { return status != "validating" })
}

func writeLines(form *multipart.Writer, lines int, prompt string) error {
	if err := form.WriteField("purpose", "batch"); err != nil {
		return fmt.Errorf("write form: %w", err)
	}
	file, err := form.CreateFormFile("file", "lines.jsonl")
	if err != nil {
		return fmt.Errorf("write form: %w", err)
	}
	var buffer bytes.Buffer
	for i := range lines {
		fmt.Fprintf(&buffer, `{"custom_id": "line %d", "method": "POST", "url": %q, "body": {"model": %q, "prompt": %q, "max_tokens": 16}}`+"\n",
			i, completionsPath, model, prompt)
		if buffer.Len() < 1<<16 && i < lines-1 {
			continue
		}
		if _, err := buffer.WriteTo(file); err != nil {
			return fmt.Errorf("write form: %w", err)
		}
	}
	return form.Close() //nolint:wrapcheck // the pipe's own
}

// awaitBatch waits until a batch has a status.
func (t *target) awaitBatch(ctx context.Context, id string, done func(status string) bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var b batchState
		if err := t.call(ctx, http.MethodGet, "/v1/batches/"+id, "application/json", http.NoBody, &b); err != nil {
			return err
		}
		switch {
		case done(b.Status):
			return nil
		case b.Status == "failed", b.Status == "expired":
			return fmt.Errorf("%w: it is %s", errBatch, b.Status)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errBatch, context.Cause(ctx))
		}
	}
}

func (t *target) cancelBatch(ctx context.Context, id string) error {
	var b batchState
	if err := t.call(ctx, http.MethodPost, "/v1/batches/"+id+"/cancel", "application/json", http.NoBody, &b); err != nil {
		return err
	}
	return t.awaitBatch(ctx, id, func(status string) bool { return status == "cancelled" })
}
