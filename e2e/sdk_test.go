//go:build e2e

package e2e_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// sdk returns a client of the official Go SDK, set up as its documentation says, and a counter of its requests.
func (g *gateway) sdk(options ...option.RequestOption) (c openai.Client, requests func() int) {
	var mu sync.Mutex
	count := 0
	counted := option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		mu.Lock()
		count++
		mu.Unlock()
		return next(r)
	})
	options = append([]option.RequestOption{
		option.WithBaseURL(g.url + "/v1"), option.WithAPIKey(g.secret), option.WithHTTPClient(httpClient), counted,
	}, options...)
	return openai.NewClient(options...), func() int {
		mu.Lock()
		defer mu.Unlock()
		return count
	}
}

// sdkParams returns a completion request of the SDK whose response is always the same.
func sdkParams(change func(*openai.CompletionNewParams)) openai.CompletionNewParams {
	p := openai.CompletionNewParams{
		Model:     "m",
		Prompt:    openai.CompletionNewParamsPromptUnion{OfString: openai.String("The capital of France is")},
		MaxTokens: openai.Int(8),
		Seed:      openai.Int(7),
	}
	if change != nil {
		change(&p)
	}
	return p
}

func TestGoSDKCompletion(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	c, _ := g.sdk()
	greedy := sdkParams(func(p *openai.CompletionNewParams) { p.Temperature = openai.Float(0) })
	first, err := c.Completions.New(t.Context(), greedy)
	if err != nil {
		t.Fatal(err)
	}
	if first.Model != checkpoint || first.Choices[0].Text == "" || first.Usage.CompletionTokens == 0 {
		t.Errorf("%+v", first)
	}
	again, err := c.Completions.New(t.Context(), sdkParams(nil), option.WithJSONSet("top_k", 1), option.WithJSONSet("min_p", 0.0))
	if err != nil {
		t.Fatal(err)
	}
	if again.Choices[0].Text != first.Choices[0].Text {
		t.Errorf("top_k 1 gives %q, temperature 0 gives %q", again.Choices[0].Text, first.Choices[0].Text)
	}
}

func TestGoSDKLogprobs(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	c, _ := g.sdk()
	got, err := c.Completions.New(t.Context(), sdkParams(func(p *openai.CompletionNewParams) { p.Logprobs = openai.Int(5) }))
	if err != nil {
		t.Fatal(err)
	}
	logprobs, tokens := got.Choices[0].Logprobs, int(got.Usage.CompletionTokens)
	if len(logprobs.Tokens) != tokens || len(logprobs.TokenLogprobs) != tokens || len(logprobs.TopLogprobs) != tokens {
		t.Fatalf("logprobs do not have one entry for each of the %d tokens: %+v", tokens, logprobs)
	}
	if text := strings.Join(logprobs.Tokens, ""); text != got.Choices[0].Text {
		t.Errorf("the joined tokens are %q, the text is %q", text, got.Choices[0].Text)
	}
	for i, top := range logprobs.TopLogprobs {
		if top[logprobs.Tokens[i]] != logprobs.TokenLogprobs[i] || len(top) < 5 || len(top) > 6 {
			t.Errorf("token %d: want the 5 best and the chosen one, got %v", i, top)
		}
	}
}

func TestGoSDKEchoAndPromptLogprobs(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	c, _ := g.sdk()
	got, err := c.Completions.New(t.Context(), sdkParams(func(p *openai.CompletionNewParams) { p.Echo = openai.Bool(true) }),
		option.WithJSONSet("prompt_logprobs", 2))
	if err != nil {
		t.Fatal(err)
	}
	choice := got.Choices[0]
	if !strings.HasPrefix(choice.Text, "The capital of France is") {
		t.Errorf("the text does not start with the prompt: %q", choice.Text)
	}
	if raw := choice.JSON.ExtraFields["prompt_logprobs"].Raw(); !strings.HasPrefix(raw, "[null,{") {
		t.Errorf("prompt_logprobs do not start with null and an object: %s", raw)
	}
}

func TestGoSDKStream(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	c, _ := g.sdk()
	whole, err := c.Completions.New(t.Context(), sdkParams(nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, usage := range []bool{false, true} {
		stream := c.Completions.NewStreaming(t.Context(), sdkParams(func(p *openai.CompletionNewParams) {
			if usage {
				p.StreamOptions.IncludeUsage = openai.Bool(true)
			}
		}))
		var text strings.Builder
		var events, tokens int64
		for stream.Next() {
			chunk := stream.Current()
			for _, choice := range chunk.Choices {
				text.WriteString(choice.Text)
				events++
			}
			if len(chunk.Choices) == 0 {
				tokens = chunk.Usage.CompletionTokens
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if text.String() != whole.Choices[0].Text || events != whole.Usage.CompletionTokens {
			t.Errorf("%d events with %q; the plain response has %d tokens and %q", events, &text, whole.Usage.CompletionTokens, whole.Choices[0].Text)
		}
		if want := whole.Usage.CompletionTokens; usage && tokens != want || !usage && tokens != 0 {
			t.Errorf("include_usage %t: a usage event of %d tokens, the plain response has %d", usage, tokens, want)
		}
	}
}

func TestGoSDKModels(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	c, _ := g.sdk()
	models, err := c.Models.List(t.Context())
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != "m" {
		t.Errorf("got %v, %+v, want one model m", err, models)
	}
	found, err := c.Models.Get(t.Context(), "m")
	if err != nil || found.ID != "m" {
		t.Errorf("got %v, %+v, want the model m", err, found)
	}
}

func TestGoSDKDoesNotRetryPermanentErrors(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	for _, c := range []struct {
		name   string
		ask    openai.CompletionNewParams
		option option.RequestOption
		status int
		code   string
		param  string
	}{
		{"unknown field", sdkParams(nil), option.WithJSONSet("temprature", 1), 400, "invalid_request", "temprature"},
		{"out of range", sdkParams(func(p *openai.CompletionNewParams) { p.Temperature = openai.Float(3) }), nil, 400, "invalid_request", "temperature"},
		{"unknown model", sdkParams(func(p *openai.CompletionNewParams) { p.Model = "x" }), nil, 400, "model_not_found", "model"},
		{"wrong key", sdkParams(nil), option.WithAPIKey("acs-bm-wrong"), 401, "invalid_api_key", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			sdk, requests := g.sdk(option.WithMaxRetries(3))
			var options []option.RequestOption
			if c.option != nil {
				options = append(options, c.option)
			}
			_, err := sdk.Completions.New(t.Context(), c.ask, options...)
			var apiErr *openai.Error
			if !errors.As(err, &apiErr) {
				t.Fatalf("not an API error: %v", err)
			}
			if apiErr.StatusCode != c.status || apiErr.Code != c.code || apiErr.Param != c.param {
				t.Errorf("got %d %s %s, want %d %s %s", apiErr.StatusCode, apiErr.Code, apiErr.Param, c.status, c.code, c.param)
			}
			if n := requests(); n != 1 {
				t.Errorf("the SDK sent %d requests, want 1", n)
			}
		})
	}
}

func TestGoSDKChatIsNotServed(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	c, requests := g.sdk(option.WithMaxRetries(3))
	_, err := c.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{
		Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
	})
	var apiErr *openai.Error
	if !errors.As(err, &apiErr) || apiErr.StatusCode != http.StatusBadRequest || apiErr.Code != "chat_completions_unsupported" {
		t.Errorf("got %v, want 400 chat_completions_unsupported", err)
	}
	if n := requests(); n != 1 {
		t.Errorf("the SDK sent %d requests, want 1", n)
	}
}

// The SDK fails on an event without data, so a comment must not be one.
func TestGoSDKReadsAStreamWithKeepalive(t *testing.T) {
	t.Parallel() // it waits for a comment
	g, mock := startGateway(t, settings{}, mockvllm.Options{FirstDelay: 6 * time.Second})
	c, _ := g.sdk(option.WithHeader("X-Acs-Keepalive", "5"))
	read := func() (events int, err error) {
		stream := c.Completions.NewStreaming(t.Context(), sdkParams(nil))
		for stream.Next() {
			events++
		}
		return events, stream.Err()
	}
	if events, err := read(); err != nil || events < 8 {
		t.Errorf("got %d events and the error %v, want at least 8 and none", events, err)
	}
	mock.InjectFault(mockvllm.Fault{Kind: "context_length"})
	if events, err := read(); err == nil || events > 0 || !strings.Contains(err.Error(), "vllm_context_length") {
		t.Errorf("got %d events and the error %v, want none and vllm_context_length", events, err)
	}
}

func TestGoSDKReportsAnInterruptedStream(t *testing.T) {
	g, mock := startGateway(t, settings{}, mockvllm.Options{})
	c, _ := g.sdk()
	for _, kind := range []string{"error_event", "reset_mid", "cut", "engine_dead"} {
		mock.InjectFault(mockvllm.Fault{Kind: kind, AfterEvents: 2})
		stream := c.Completions.NewStreaming(t.Context(), sdkParams(nil))
		seen := 0
		for stream.Next() {
			seen++
		}
		if err := stream.Err(); err == nil || !strings.Contains(err.Error(), "received error while streaming") {
			t.Errorf("%s: got the error %v", kind, err)
		}
		if seen != 2 {
			t.Errorf("%s: %d events before the error, want 2", kind, seen)
		}
		mock.ClearFaults()
	}
}

func TestGoSDKRetriesTransientErrors(t *testing.T) {
	g, mock := startGateway(t, settings{extra: "breaker: {consecutive_failures: 1000}"}, mockvllm.Options{})
	c, requests := g.sdk(option.WithMaxRetries(2))
	mock.InjectFault(mockvllm.Fault{Kind: "abort"}) // the gateway does not retry this one at the same backend
	got, err := c.Completions.New(t.Context(), sdkParams(nil))
	if err != nil || got.Choices[0].Text == "" {
		t.Fatalf("got %v, %+v, want a completion", err, got)
	}
	if n := requests(); n != 2 {
		t.Errorf("the SDK sent %d requests, want 2", n)
	}
}

func TestGoSDKRunsABatch(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	c, _ := g.sdk()
	text, ids := batchLines(20)
	file, err := c.Files.New(t.Context(), openai.FileNewParams{
		File: openai.File(strings.NewReader(text), "facts.jsonl", "application/jsonl"), Purpose: openai.FilePurposeBatch,
		ExpiresAfter: openai.FileNewParamsExpiresAfter{Seconds: 3600},
	})
	must(t, err)
	if file.Filename != "facts.jsonl" || file.ExpiresAt-file.CreatedAt != 3600 || file.Bytes != int64(len(text)) {
		t.Errorf("the file is %+v", file)
	}
	batch, err := c.Batches.New(t.Context(), openai.BatchNewParams{
		InputFileID: file.ID, Endpoint: openai.BatchNewParamsEndpointV1Completions, CompletionWindow: openai.BatchNewParamsCompletionWindow24h,
	})
	must(t, err)
	id := batch.ID
	poll.Until(t, "the batch is completed", func() bool {
		batch, err = c.Batches.Get(t.Context(), id)
		return err == nil && batch.Status == openai.BatchStatusCompleted
	})
	if n := batch.RequestCounts; n.Total != 20 || n.Completed != 20 || n.Failed != 0 {
		t.Errorf("request_counts: %+v", n)
	}
	content, err := c.Files.Content(t.Context(), batch.OutputFileID)
	must(t, err)
	defer content.Body.Close()
	results, err := io.ReadAll(content.Body)
	must(t, err)
	if n := strings.Count(string(results), "\n"); n != len(ids) {
		t.Errorf("%d results, want %d", n, len(ids))
	}
	page, err := c.Batches.List(t.Context(), openai.BatchListParams{Limit: openai.Int(1)})
	must(t, err)
	if len(page.Data) != 1 || page.Data[0].ID != id {
		t.Errorf("the batches are %+v", page.Data)
	}
	names := map[string]bool{}
	for pages := c.Files.ListAutoPaging(t.Context(), openai.FileListParams{Limit: openai.Int(1)}); pages.Next(); {
		names[pages.Current().ID] = true
	}
	if !names[file.ID] || !names[batch.OutputFileID] || len(names) != 2 {
		t.Errorf("the files are %v", names)
	}
	if deleted, err := c.Files.Delete(t.Context(), file.ID); err != nil || !deleted.Deleted {
		t.Errorf("delete: %+v, %v", deleted, err)
	}
	var apiErr *openai.Error
	if _, err := c.Batches.Cancel(t.Context(), id); !errors.As(err, &apiErr) || apiErr.StatusCode != http.StatusConflict || apiErr.Code != "batch_not_cancellable" {
		t.Errorf("the cancellation of an ended batch: %v", err)
	}
	if _, err := c.Files.Get(t.Context(), file.ID); !errors.As(err, &apiErr) || apiErr.StatusCode != http.StatusNotFound || apiErr.Code != "not_found" {
		t.Errorf("a deleted file: %v", err)
	}
}
