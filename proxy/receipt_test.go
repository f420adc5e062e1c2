package proxy_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/budget/quota"
	"basegate/budget/receipt"
	"basegate/database"
	"basegate/internal/poll"
	"basegate/mockvllm"
	"basegate/proxy"
	"basegate/validate"
)

// startReceipts starts a mock that chats and a harness that gives receipts.
func startReceipts(t *testing.T, change func(*harnessOptions)) (*harness, *mockvllm.Process) {
	t.Helper()
	return startChat(t, mockvllm.Options{}, func(o *harnessOptions) {
		o.receipts = true
		if change != nil {
			change(o)
		}
	})
}

// withReceipt sends a request that asks for a receipt by the header.
func (h *harness) withReceipt(path, body string) response {
	h.t.Helper()
	req := h.newRequest(h.t.Context(), http.MethodPost, path, body)
	req.Header.Set("X-Acs-Receipt", "true")
	return h.do(req)
}

// receiptOf returns the receipt of a response, of a plain one from the log.
func (h *harness) receiptOf(r response) *receipt.Receipt {
	h.t.Helper()
	if _, comment, found := strings.Cut(r.body, "\n: receipt "); found {
		line, rest, _ := strings.Cut(comment, "\n")
		if rest != "data: [DONE]\n\n" {
			h.t.Errorf("after the comment comes %q, want [DONE] alone", rest)
		}
		return h.parse([]byte(line))
	}
	leaf := r.header.Get("X-Acs-Receipt")
	w := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(h.t.Context(), http.MethodGet, "/receipts/x?nonce=1", http.NoBody)
	i, err := h.keys.Authenticate(h.t.Context(), h.secret)
	if err == nil {
		err = h.receipts.ServeReceipt(w, req, leaf, i.KeyID)
	}
	if err != nil {
		h.t.Fatalf("receipt %q of %d %s: %v", leaf, r.status, r.body, err)
	}
	return h.parse(w.Body.Bytes())
}

func (h *harness) parse(text []byte) *receipt.Receipt {
	h.t.Helper()
	r, err := receipt.Parse(text)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

func TestReceiptProvesTheAnswerAsItWasSent(t *testing.T) {
	t.Parallel()
	h, mock := startReceipts(t, nil)
	for _, c := range []struct {
		name, path, body     string
		kind, reasons, param string
	}{
		{"plain", proxy.CompletionsPath, `{"model":"m","prompt":"the sea","ignore_eos":true,"max_tokens":3,"temperature":0.50}`, "completion", "length", "temperature=0.5"},
		{"user tag", proxy.CompletionsPath, `{"model":"m","prompt":"the sea","ignore_eos":true,"max_tokens":3,"seed":-9007199254740993,"user":"ü"}`, "completion", "length", "seed=-9007199254740993"},
		{"several choices", proxy.CompletionsPath, `{"model":"m","prompt":["a","b"],"n":2,"ignore_eos":true,"max_tokens":3}`, "completion", "length length length length", "n=2"},
		{"best_of", proxy.CompletionsPath, `{"model":"m","prompt":"a","n":2,"best_of":4,"ignore_eos":true,"max_tokens":3}`, "completion", "length length", "best_of=4"},
		{"default max_tokens", proxy.CompletionsPath, `{"model":"m","prompt":"a","ignore_eos":true}`, "completion", "length", "max_tokens=16"},
		{"stream", proxy.CompletionsPath, `{"model":"m","prompt":"the sea","ignore_eos":true,"max_tokens":5,"stream":true}`, "completion", "length", "max_tokens=5"},
		{"stream with usage", proxy.CompletionsPath, `{"model":"m","prompt":["a","b"],"ignore_eos":true,"max_tokens":5,"stream":true,"stream_options":{"include_usage":true}}`, "completion", "length length", "max_tokens=5"},
		{"stream with onchain_data", proxy.CompletionsPath, `{"model":"m","prompt":"a","ignore_eos":true,"max_tokens":5,"stream":true,"stream_options":{"include_receipt":true}}`, "completion", "length", "max_tokens=5"},
		{"chat", proxy.ChatPath, `{"model":"m","messages":` + userMessage + `,"max_completion_tokens":4,"ignore_eos":true}`, "chat.completion", "length", "max_tokens=4"},
		{"chat stream", proxy.ChatPath, `{"model":"m","messages":` + userMessage + `,"max_tokens":4,"ignore_eos":true,"stream":true,"stream_options":{"include_receipt":true,"include_usage":true}}`, "chat.completion", "length", "max_tokens=4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.t = t
			got := h.withReceipt(c.path, c.body)
			if got.status != http.StatusOK {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			r := h.receiptOf(got)
			if err := r.Verify([]byte(c.body), []byte(got.body), h.receipts.VerifierKey()); err != nil {
				t.Error(err)
			}
			e := r.Entry
			name, value, _ := strings.Cut(c.param, "=")
			if e.Kind != c.kind || strings.Join(e.FinishReasons, " ") != c.reasons || e.Parameters[name] != value {
				t.Errorf("the entry is %+v, want kind %s, finish reasons %s and %s", e, c.kind, c.reasons, c.param)
			}
			if e.Model != "m" || e.Checkpoint != "org/Model-8B" || e.GPU != "H100" || e.RequestID != got.header.Get("X-Request-Id") || e.VLLMVersion == "" {
				t.Errorf("the entry is %+v, want the model, the backend and the request", e)
			}
			if row := h.detail(got); e.Usage.PromptTokens != row.PromptTokens || e.Usage.CompletionTokens != row.CompletionTokens {
				t.Errorf("the entry has the usage %+v, want that of the ledger: %+v", e.Usage, row)
			}
		})
	}
	for _, body := range append(requestsTo(mock, proxy.CompletionsPath), requestsTo(mock, proxy.ChatPath)...) {
		if strings.Contains(body, "receipt") {
			t.Errorf("the backend receives %s", body)
		}
	}
}

func TestTokenizerGivesReceipts(t *testing.T) {
	t.Parallel()
	h, _ := startReceipts(t, nil)
	for _, c := range []struct{ path, body, kind, parameters string }{
		{"/v1/tokenize", `{"model":"m","prompt":"the sea","add_special_tokens":false}`, "tokenization", "map[add_special_tokens:false]"},
		{"/v1/detokenize", `{"model":"m","tokens":[5,6]}`, "detokenization", "map[]"},
	} {
		if got := h.post(c.path, c.body); got.header.Get("X-Acs-Receipt") != "" {
			t.Errorf("%s without the header has a receipt", c.path)
		}
		got := h.withReceipt(c.path, c.body)
		r := h.receiptOf(got)
		if err := r.Verify([]byte(c.body), []byte(got.body), h.receipts.VerifierKey()); err != nil {
			t.Errorf("%s: %v", c.path, err)
		}
		if e := r.Entry; e.Kind != c.kind || fmt.Sprint(e.Parameters) != c.parameters || len(e.Also)+len(e.FinishReasons) != 0 || e.Usage != (receipt.Usage{}) ||
			e.Model != "m" || e.Checkpoint != "org/Model-8B" || e.GPU != "H100" || e.RequestID != got.header.Get("X-Request-Id") {
			t.Errorf("%s: the entry is %+v", c.path, e)
		}
	}
	if n := h.receipts.Size(); n != 2 {
		t.Errorf("the log has %d entries, want 2", n)
	}
}

// The tokenizer is free, but an entry of the log stays for ever.
func TestReceiptOfTheTokenizerNeedsABudget(t *testing.T) {
	t.Parallel()
	h, _ := startReceipts(t, nil)
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(0) }))
	const body = `{"model":"m","prompt":"a"}`
	if got := h.post("/v1/tokenize", body); got.status != http.StatusOK {
		t.Errorf("without a receipt: got %d %s", got.status, got.body)
	}
	if got := h.withReceipt("/v1/tokenize", body); got.status != http.StatusTooManyRequests {
		t.Errorf("with a receipt: got %d %s, want 429", got.status, got.body)
	}
}

// While the database is busy, a client that leaves frees its slot, and its entry, which is queued, is not written. It waits for
// longer each time, so that some leave while theirs is.
func TestClientThatLeavesDoesNotWaitForItsReceipt(t *testing.T) {
	t.Parallel()
	h, _ := startReceipts(t, nil)
	for patience := time.Millisecond; patience < time.Second; patience *= 2 {
		blocks, unblocked := make(chan struct{}), make(chan struct{})
		unblock := sync.OnceFunc(func() { close(unblocked) })
		defer unblock() // otherwise the database could not be closed after a failure
		blocked := h.db.Submit(func(database.Tx) error { close(blocks); <-unblocked; return nil })
		<-blocks // in the writer, and not in the request
		ctx, leave := context.WithTimeout(t.Context(), patience)
		r := h.newRequest(ctx, http.MethodPost, "/v1/tokenize", `{"model":"m","prompt":"a"}`)
		r.Header.Set("X-Acs-Receipt", "true")
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
			t.Fatalf("got %d while the entry cannot be on disk", resp.StatusCode)
		}
		poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 })
		leave()
		unblock()
		if err := errors.Join(blocked.Wait(t.Context()), h.db.WriteGrouped(t.Context(), func(database.Tx) error { return nil })); err != nil {
			t.Fatal(err)
		}
		var entries int
		const text = "SELECT count(*) FROM receipts"
		if err := h.db.Read().QueryRowContext(t.Context(), text).Scan(&entries); err != nil {
			t.Fatal(err)
		}
		if entries > 0 {
			t.Fatalf("%d entries for a client that has left", entries)
		}
	}
}

func TestEntryHoldsNoText(t *testing.T) {
	t.Parallel()
	h, _ := startReceipts(t, nil)
	body := `{"model":"m","prompt":"SECRET","max_tokens":3,"stop":["SECRET"],"bad_words":["SECRET"],"user":"SECRET","cache_salt":"SECRET","logit_bias":{"5":1},` +
		`"response_format":{"type":"json_schema","json_schema":{"name":"SECRET","schema":{}}}}`
	e := h.receiptOf(h.withReceipt(proxy.CompletionsPath, body)).Entry
	if got, want := strings.Join(e.Also, " "), "stop bad_words logit_bias response_format"; got != want {
		t.Errorf("the other parameters are %q, want %q", got, want)
	}
	var rows int
	if err := h.db.Read().QueryRowContext(t.Context(), "SELECT count(*) FROM receipts WHERE entry LIKE '%SECRET%'").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d entries hold a text, error %v", rows, err)
	}
}

func TestStreamWithReceiptHasTheEventsOfOneWithout(t *testing.T) {
	t.Parallel()
	events := "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"x\",\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\n"
	usage := "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n"
	backend := startBackend(t, respondStream(events+usage+"data: [DONE]\n\n"))
	h := newHarness(t, func(o *harnessOptions) { o.receipts = true }, backend)
	got := h.withReceipt(proxy.CompletionsPath, `{"model":"m","prompt":"a","stream":true}`)
	if want := events + ": receipt {"; !strings.HasPrefix(got.body, want) {
		t.Errorf("got %q, want it to begin with %q", got.body, want)
	}
	if got.header.Get("X-Acs-Receipt") != "" {
		t.Error("a stream has the header of a plain response")
	}
	got = h.complete(`{"model":"m","prompt":"a","stream":true,"stream_options":{"include_receipt":true}}`)
	event := `data: {"id":"cmpl-1","object":"text_completion","created":5,"model":"x","choices":[],"onchain_data":{"assignment_addresses":["model=m;checkpoint=org/Model-8B`
	if !strings.HasPrefix(got.body, events+event) {
		t.Errorf("got %q, want the event %q", got.body, event)
	}
	if r := h.receiptOf(got); !strings.Contains(got.body, `"infer_tx":"`+r.LeafHash.String()+`"`) {
		t.Errorf("infer_tx is not the leaf hash %s: %s", r.LeafHash, got.body)
	}
}

func TestCompressedRequestIsProvenAsItWasBefore(t *testing.T) {
	t.Parallel()
	h, _ := startReceipts(t, nil)
	const body = `{"model":"m","prompt":"a","max_tokens":3}`
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	io.WriteString(w, body)
	w.Close()
	req := h.newRequest(t.Context(), http.MethodPost, proxy.CompletionsPath, compressed.String())
	req.Header.Set("X-Acs-Receipt", "true")
	req.Header.Set("Content-Encoding", "gzip")
	got := h.do(req)
	if err := h.receiptOf(got).Verify([]byte(body), []byte(got.body), ""); err != nil {
		t.Error(err)
	}
}

func TestReceiptIsGivenOnlyForAWholeAnswer(t *testing.T) {
	t.Parallel()
	broken := startBackend(t, respond(http.StatusInternalServerError, "application/json", `{"error":{"message":"no"}}`))
	h := newHarness(t, func(o *harnessOptions) { o.receipts, o.settings.Attempts = true, 1 }, broken)
	for _, body := range []string{`{"model":"m","prompt":"a","temperature":9}`, `{"model":"x","prompt":"a"}`, `{"model":"m","prompt":"a","max_tokens":3}`} {
		if got := h.withReceipt(proxy.CompletionsPath, body); got.status == http.StatusOK || got.header.Get("X-Acs-Receipt") != "" {
			t.Errorf("%s: got %d, header %q", body, got.status, got.header.Get("X-Acs-Receipt"))
		}
	}
	var rows int
	const text = "SELECT count(*) FROM receipts"
	if err := h.db.Read().QueryRowContext(t.Context(), text).Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d entries, error %v, want none", rows, err)
	}
	h, _ = startReceipts(t, nil)
	if got := h.complete(`{"model":"m","prompt":"a","max_tokens":3}`); got.header.Get("X-Acs-Receipt") != "" {
		t.Error("a request that did not ask for a receipt has one")
	}
	req := h.newRequest(t.Context(), http.MethodPost, proxy.CompletionsPath, `{"model":"m","prompt":"a","max_tokens":3}`)
	req.Header.Set("X-Acs-Receipt", "false")
	if got := h.do(req); got.status != http.StatusOK || got.header.Get("X-Acs-Receipt") != "" {
		t.Errorf("with the value false: got %d, header %q", got.status, got.header.Get("X-Acs-Receipt"))
	}
}

func TestReceiptThatCannotBeGivenIsAnError(t *testing.T) {
	t.Parallel()
	off := newHarness(t, nil, refusingBackend(t))
	on, _ := startReceipts(t, nil)
	for _, c := range []struct {
		h             *harness
		header, body  string
		param, saying string
	}{
		{off, "true", `{"model":"m","prompt":"a"}`, "X-Acs-Receipt", "not enabled"},
		{off, "maybe", `{"model":"m","prompt":"a"}`, "X-Acs-Receipt", "expected true or false"},
		{off, "", `{"model":"m","prompt":"a","stream":true,"stream_options":{"include_receipt":true}}`, "stream_options", `"include_receipt"`},
		{on, "1", `{"model":"m","prompt":"a"}`, "X-Acs-Receipt", "expected true or false"},
		{on, "true, true", `{"model":"m","prompt":"a"}`, "X-Acs-Receipt", "expected true or false"},
		{on, " ", `{"model":"m","prompt":"a"}`, "X-Acs-Receipt", `got ""; expected true or false`},
		{on, "", `{"model":"m","prompt":"a","stream":true,"stream_options":{"include_receipt":1}}`, "stream_options", "include_receipt with 1; expected an object with at the most include_receipt"},
		{on, "", `{"model":"m","prompt":"a","stream":true,"stream_options":{"include_receipt":true,"include_receipt":true}}`, "include_receipt", "twice"},
		{on, "", `{"model":"m","prompt":"a","stream_options":{"include_receipt":true}}`, "stream_options", "only with stream: true"},
	} {
		req := c.h.newRequest(t.Context(), http.MethodPost, proxy.CompletionsPath, c.body)
		if c.header != "" {
			req.Header.Set("X-Acs-Receipt", c.header)
		}
		got := c.h.do(req)
		if got.status != http.StatusBadRequest || gjson.Get(got.body, "error.param").Str != c.param || !strings.Contains(gjson.Get(got.body, "error.message").Str, c.saying) {
			t.Errorf("header %q, %s: got %d %s, want 400 with param %s, saying %q", c.header, c.body, got.status, got.body, c.param, c.saying)
		}
	}
}

// A header that is neither true nor false is an error everywhere, and an estimate says what the request itself would get.
func TestRequestIsToldWhetherItGetsAReceipt(t *testing.T) {
	t.Parallel()
	h, _ := startReceipts(t, nil)
	for _, c := range []struct {
		path, body, header string
		status             int
		want               string
	}{
		{"/v1/tokenize", `{"model":"m","prompt":"a"}`, "maybe", http.StatusBadRequest, "expected true or false"},
		{"/v1/detokenize", `{"model":"m","tokens":[1]}`, "yes", http.StatusBadRequest, "expected true or false"},
		{"/v1/estimate", `{"model":"m","prompt":"a"}`, "true", http.StatusOK, `"receipt":true`},
		{"/v1/estimate", `{"model":"m","prompt":"a"}`, "false", http.StatusOK, `"receipt":false`},
		{"/v1/estimate", `{"model":"m","prompt":"a","stream":true,"stream_options":{"include_receipt":true}}`, "false", http.StatusOK, `"receipt":true`},
		{"/v1/estimate", `{"model":"m","prompt":"a"}`, "1", http.StatusBadRequest, "expected true or false"},
	} {
		req := h.newRequest(t.Context(), http.MethodPost, c.path, c.body)
		req.Header.Set("X-Acs-Receipt", c.header)
		got := h.do(req)
		if got.status != c.status || !strings.Contains(got.body, c.want) {
			t.Errorf("%s with %q, %s: got %d %s, want %d with %s", c.path, c.header, c.body, got.status, got.body, c.status, c.want)
		}
		if got.status != http.StatusOK && gjson.Get(got.body, "error.param").Str != "X-Acs-Receipt" {
			t.Errorf("%s with %q: got %s, want the param X-Acs-Receipt", c.path, c.header, got.body)
		}
	}
	twice := h.newRequest(t.Context(), http.MethodPost, proxy.CompletionsPath, `{"model":"m","prompt":"a"}`)
	twice.Header["X-Acs-Receipt"] = []string{"true", "true"}
	if got := h.do(twice); got.status != http.StatusBadRequest || !strings.Contains(got.body, `got \"true, true\"`) {
		t.Errorf("the header twice: got %d %s", got.status, got.body)
	}
}

func TestDialectCanAskForTheReceiptOfEachRequest(t *testing.T) {
	t.Parallel()
	const path = "/other/v1/completions"
	h, _ := startReceipts(t, func(o *harnessOptions) {
		o.settings.Dialects = []*proxy.Dialect{{Prefix: "/other", Endpoints: map[string]func([]byte, validate.Limits) (proxy.Translation, error){
			path: func(body []byte, limits validate.Limits) (proxy.Translation, error) {
				r, err := validate.Completion(body, limits)
				return proxy.Translation{Request: r, Receipt: true}, err
			},
		}}}
	})
	complete := func(body string) response { return h.do(h.newRequest(t.Context(), http.MethodPost, path, body)) }
	original := `{"model":"m","prompt":"a","max_tokens":2,"user":"u"}`
	got := complete(original)
	r := h.receiptOf(got)
	if gjson.Get(got.body, "onchain_data.infer_tx").Str != r.LeafHash.String() || !gjson.Valid(got.body) || gjson.Get(got.body, "user").Str != "u" {
		t.Errorf("got %s, want onchain_data with %s", got.body, r.LeafHash)
	}
	if err := r.Verify([]byte(original), []byte(got.body), ""); err != nil {
		t.Error(err)
	}
	original = `{"model":"m","prompt":"a","max_tokens":2,"stream":true,"stream_options":{"include_receipt":true}}`
	got = complete(original)
	if !strings.Contains(got.body, `"onchain_data":{`) {
		t.Errorf("got %s, want an event with onchain_data", got.body)
	}
	if err := h.receiptOf(got).Verify([]byte(original), []byte(got.body), ""); err != nil {
		t.Error(err)
	}
	for _, options := range []string{"", `,"stream_options":{"include_usage":true}`} { // the receipt is a comment, as for other endpoints
		got := complete(`{"model":"m","prompt":"a","max_tokens":2,"stream":true` + options + `}`)
		if h.receiptOf(got); strings.Contains(got.body, "onchain_data") {
			t.Errorf("%s: got %s, want a comment and no event with onchain_data", options, got.body)
		}
	}
}

func TestAnswerWhoseEntryCannotBeWrittenIsNotFinished(t *testing.T) {
	t.Parallel()
	h, _ := startReceipts(t, nil)
	err := h.db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "CREATE TRIGGER full BEFORE INSERT ON receipts BEGIN SELECT RAISE(ABORT, 'disk full'); END")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got := h.withReceipt(proxy.CompletionsPath, `{"model":"m","prompt":"a","max_tokens":3}`)
	if got.status == http.StatusOK || got.header.Get("X-Acs-Receipt") != "" {
		t.Errorf("got %d %s, want an error without a receipt", got.status, got.body)
	}
	got = h.withReceipt(proxy.CompletionsPath, `{"model":"m","prompt":"a","max_tokens":3,"stream":true}`)
	if strings.Contains(got.body, "[DONE]") || strings.Contains(got.body, ": receipt") || !strings.Contains(got.body, `"error"`) {
		t.Errorf("got %s, want an error event and no [DONE]", got.body)
	}
}
