package errors_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	apierr "basegate/errors"
)

var update = flag.Bool("update", false, "rewrite the files in testdata from what the code does")

// errSecret is a cause that no client must receive.
var errSecret = errors.New("secret: password=hunter2 in /etc/basegate")

// example is the result of one constructor call.
type example struct {
	name string
	err  error
}

var exhausted = apierr.Budget{
	Scope: "key", Window: "month", Meter: "total", Limit: 1000, Used: 990, Reserved: 7,
	ResetsAt: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC),
}

// exhaustedByBytes is exhausted for a prompt that nothing can count.
var exhaustedByBytes = func() apierr.Budget {
	b := exhausted
	b.PromptBound = 104
	return b
}()

// examples returns the result of every constructor, with every code that it can have.
func examples() []example {
	return []example{
		{"InvalidField", apierr.InvalidField("temperature", "temperature: got 3; expected a number from 0 to 2")},
		{"UnknownField", apierr.UnknownField("max_completion_tokens", "")},
		{"MaxTokensTooLarge", apierr.MaxTokensTooLarge("max_tokens", 1, 9000, 8192)},
		{"UnsupportedField", apierr.UnsupportedField("priority", "")},
		{"UnsupportedField with another field", apierr.UnsupportedField("guided_json", "structured_outputs")},
		{"FieldUnserved", apierr.FieldUnserved("truncate_prompt_tokens", "truncate_prompt_tokens -1", "llama-8b", "vLLM 0.9", "expected vLLM 0.20 or later")},
		{"UnknownField with a suggestion", apierr.UnknownField("temprature", "temperature")},
		{"MalformedJSON", apierr.MalformedJSON(17, "the body ends in the middle of the JSON object")},
		{"UnknownModel", apierr.UnknownModel("model", "gpt-4o", []string{"llama-8b", "llama-405b"}, "")},
		{"UnknownModel with a suggestion", apierr.UnknownModel("model", "meta-llama/Llama-3.1-8B", []string{"llama-8b", "llama-405b"}, "llama-8b")},
		{"ContextTooLong", apierr.ContextTooLong("prompt", "max_tokens", 8000, 500, 8192, true)},
		{"ContextTooLong by the bytes of the prompt", apierr.ContextTooLong("prompt", "max_tokens", 8000, 500, 8192, false)},
		{"NoChat", apierr.NoChat(nil)},
		{"NoChat with models", apierr.NoChat([]string{"llama-8b-instruct", "qwen-7b"})},
		{"NoCompletions", apierr.NoCompletions("model", "llama-8b-instruct")},
		{"BudgetSpent", apierr.BudgetSpent(exhausted)},
		{"BudgetSpent by the bytes of the prompt", apierr.BudgetSpent(exhaustedByBytes)},
		{"BadKey", apierr.BadKey(errSecret)},
		{"ShortenedKey", apierr.ShortenedKey(errSecret)},
		{"NoSuchPath", apierr.NoSuchPath("GET", "/v1/nothing", "")},
		{"NoSuchPath with a hint", apierr.NoSuchPath("POST", "/v1/embeddings", "base models give no embeddings")},
		{"WrongMethod", apierr.WrongMethod("GET", "/v1/completions", "POST")},
		{"BodyTooLarge", apierr.BodyTooLarge(16 << 20)},
		{"UnknownEncoding", apierr.UnknownEncoding("br")},
		{"Unreachable", apierr.Unreachable("no backend of llama-8b could be reached", 3, errSecret)},
		{"BootFailed", apierr.BootFailed("llama-8b", "its start command failed", 30*time.Second, errSecret)},
		{"BootFailed without a reason", apierr.BootFailed("llama-8b", "", 30*time.Second, errSecret)},
		{"Unreachable at once", apierr.Unreachable("no backend of llama-8b could be reached", 1, errSecret)},
		{"UpstreamFailed vllm_oom", apierr.UpstreamFailed(apierr.VLLMOutOfMemory, "the model server ran out of GPU memory", 500, 1, nil)},
		{"UpstreamFailed vllm_context_length", apierr.UpstreamFailed(apierr.VLLMContextLength, "the prompt is too long", 400, 1, nil)},
		{"UpstreamFailed vllm_engine_dead", apierr.UpstreamFailed(apierr.VLLMEngineDead, "the engine has crashed", 500, 3, nil)},
		{"UpstreamFailed without a response", apierr.UpstreamFailed(apierr.UpstreamServerError, "the model server failed", 0, 2, nil)},
		{"EngineKiller", apierr.EngineKiller(500, 2)},
		{"EngineKiller without a response", apierr.EngineKiller(0, 0)},
		{"UpstreamFailed upstream_server_error", apierr.UpstreamFailed(apierr.UpstreamServerError, "the model server failed", 503, 2, nil)},
		{"UpstreamRefused", apierr.UpstreamRefused("top_p must be in (0, 1], got 0.", "top_p", 400)},
		{"UpstreamRefused without a reason", apierr.UpstreamRefused("", "", 422)},
		{"Booting", apierr.Booting("llama-405b", 45*time.Second, 30*time.Second+time.Millisecond, 10*time.Minute)},
		{"Booting without an estimate", apierr.Booting("llama-405b", 5*time.Second, 30*time.Second, 0)},
		{"BreakerOpen", apierr.BreakerOpen("llama-8b", 6500*time.Millisecond)},
		{"BreakerOpen for a second", apierr.BreakerOpen("llama-8b", time.Second)},
		{"Overload", apierr.Overload(apierr.NoMemory, "the gateway is shutting down", 10*time.Second, errSecret)},
		{"Unexpected", apierr.Unexpected(errSecret)},
		{"NoSuchObject", apierr.NoSuchObject("file", "file-abc")},
		{"NameOfAnother", apierr.NameOfAnother("lora_name")},
		{"NoSuchAdapter", apierr.NoSuchAdapter()},
		{"AdapterNotLoaded", apierr.AdapterNotLoaded("sql-v3", "it cannot load the adapter: LoRA rank 64 is greater than max_lora_rank 16.", errSecret)},
		{"FileOfBatch", apierr.FileOfBatch("file-abc", "batch_abc")},
		{"BatchHasEnded", apierr.BatchHasEnded("batch_abc", "completed")},
		{"OtherBody", apierr.OtherBody()},
		{"FileTooLarge", apierr.FileTooLarge(6 << 30)},
		{"StorageQuota", apierr.StorageQuota(100<<30, 99<<30)},
		{"UnfinishedBatches", apierr.UnfinishedBatches(100)},
		{"TooManyFiles", apierr.TooManyFiles(10_000, 100<<30, 1<<30)},
		{"Storage", apierr.Storage(errSecret)},
		{"NotPermitted", apierr.NotPermitted("this key may not make keys")},
		{"TooManyChildren", apierr.TooManyChildren(100)},
		{"NoSuchKey", apierr.NoSuchKey("key_abc")},
		{"RangeOutside", apierr.RangeOutside(360)},
		{"NoMatch", apierr.NoMatch()},
	}
}

func TestTaxonomyMatchesGoldenFile(t *testing.T) {
	var got strings.Builder
	got.WriteString("code status type x-should-retry from-upstream\n")
	for _, code := range apierr.Codes() {
		h := http.Header{}
		(&apierr.Error{Code: code}).SetHeaders(h)
		retry := h.Get("X-Should-Retry")
		if retry == "" {
			retry = "-"
		}
		fmt.Fprintf(&got, "%s %d %s %s %t\n", code, code.Status(), code.Type(), retry, code.FromUpstream())
	}
	for _, x := range examples() {
		e := apierr.From(x.err)
		fmt.Fprintf(&got, "\n== %s: %d\n", x.name, e.Status())
		h := http.Header{}
		e.SetHeaders(h)
		if err := h.Write(&crStripper{&got}); err != nil {
			t.Fatal(err)
		}
		got.Write(append(e.AppendJSON(nil, "req_1"), '\n'))
	}
	compareGolden(t, "testdata/taxonomy.golden", got.String())
}

// crStripper removes the carriage returns that http.Header.Write writes.
type crStripper struct{ to *strings.Builder }

func (w *crStripper) Write(p []byte) (int, error) {
	w.to.Write(bytes.ReplaceAll(p, []byte("\r"), nil))
	return len(p), nil
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites the file):\n%s", file, diff)
	}
}

// contract is the table of errors in the API's documentation, written by hand and independent of the code.
var contract = []struct {
	code   apierr.Code
	status int
	kind   string
	retry  string
}{
	{"invalid_request", 400, "invalid_request_error", "false"},
	{"bad_json", 400, "invalid_request_error", "false"},
	{"model_not_found", 400, "invalid_request_error", "false"},
	{"context_length_exceeded", 400, "invalid_request_error", "false"},
	{"chat_completions_unsupported", 400, "invalid_request_error", "false"},
	{"invalid_api_key", 401, "authentication_error", "false"},
	{"permission_denied", 403, "permission_error", "false"},
	{"not_found", 404, "invalid_request_error", "false"},
	{"method_not_allowed", 405, "invalid_request_error", ""},
	{"adapter_exists", 409, "invalid_request_error", "false"},
	{"file_in_use", 409, "invalid_request_error", "false"},
	{"batch_not_cancellable", 409, "invalid_request_error", "false"},
	{"idempotency_conflict", 409, "invalid_request_error", "false"},
	{"request_too_large", 413, "invalid_request_error", "false"},
	{"storage_quota_exceeded", 413, "invalid_request_error", "false"},
	{"unsupported_encoding", 415, "invalid_request_error", "false"},
	{"budget_exceeded", 429, "insufficient_quota", "false"},
	{"too_many_batches", 429, "invalid_request_error", "false"},
	{"too_many_keys", 429, "invalid_request_error", "false"},
	{"upstream_unreachable", 502, "upstream_error", ""},
	{"vllm_oom", 502, "upstream_error", "false"},
	{"vllm_context_length", 502, "upstream_error", "false"},
	{"vllm_engine_dead", 502, "upstream_error", ""},
	{"upstream_server_error", 502, "upstream_error", ""},
	{"adapter_unavailable", 502, "upstream_error", "false"},
	{"modal_cold_boot", 503, "service_unavailable", "true"},
	{"circuit_open", 503, "service_unavailable", ""},
	{"overloaded", 503, "service_unavailable", ""},
	{"storage_unavailable", 503, "service_unavailable", ""},
	{"internal_error", 500, "server_error", ""},
}

func TestCodesHaveTheStatusTypeAndRetryAdviceOfTheContract(t *testing.T) {
	known := apierr.Codes()
	if len(known) != len(contract) {
		t.Errorf("the table has %d codes, want the %d of the contract", len(known), len(contract))
	}
	for _, want := range contract {
		if !slices.Contains(known, want.code) {
			t.Errorf("%s is missing", want.code)
		}
		h := http.Header{}
		(&apierr.Error{Code: want.code}).SetHeaders(h)
		if got := h.Get("X-Should-Retry"); got != want.retry {
			t.Errorf("%s: got X-Should-Retry %q, want %q", want.code, got, want.retry)
		}
		if want.code.Status() != want.status || want.code.Type() != want.kind {
			t.Errorf("%s: got %d %s, want %d %s", want.code, want.code.Status(), want.code.Type(), want.status, want.kind)
		}
		if got := want.code.FromUpstream(); got != (want.kind == "upstream_error") {
			t.Errorf("%s: FromUpstream is %t, want %t", want.code, got, !got)
		}
	}
}

// Every error has the same five members first, then its extras in the order of the contract's table.
func TestMembersAreInTheOrderOfTheContract(t *testing.T) {
	extras := map[string]string{
		"UnknownField with a suggestion":            "suggestion",
		"MalformedJSON":                             "offset",
		"UnknownModel":                              "available",
		"UnknownModel with a suggestion":            "available suggestion",
		"ContextTooLong":                            "prompt_tokens max_tokens max_model_len",
		"ContextTooLong by the bytes of the prompt": "prompt_tokens max_tokens max_model_len",
		"MaxTokensTooLarge":                         "prompt_tokens max_tokens max_model_len",
		"BodyTooLarge":                              "limit_bytes",
		"Unreachable":                               "attempts",
		"Unreachable at once":                       "attempts",
		"BootFailed":                                "attempts",
		"BootFailed without a reason":               "attempts",
		"UpstreamFailed vllm_oom":                   "upstream_status attempts",
		"UpstreamFailed vllm_context_length":        "upstream_status attempts",
		"UpstreamFailed vllm_engine_dead":           "upstream_status attempts",
		"UpstreamFailed upstream_server_error":      "upstream_status attempts",
		"UpstreamFailed without a response":         "upstream_status attempts",
		"EngineKiller":                              "upstream_status attempts",
		"EngineKiller without a response":           "upstream_status attempts",
		"UpstreamRefused":                           "upstream_status",
		"UpstreamRefused without a reason":          "upstream_status",
		"Booting":                                   "retry_after_seconds boot_elapsed_seconds boot_estimate_seconds",
		"Booting without an estimate":               "retry_after_seconds boot_elapsed_seconds boot_estimate_seconds",
		"BreakerOpen":                               "retry_after_seconds",
		"BreakerOpen for a second":                  "retry_after_seconds",
		"Overload":                                  "retry_after_seconds",
		"BudgetSpent by the bytes of the prompt":    "scope window meter limit used reserved resets_at",
		"BudgetSpent":                               "scope window meter limit used reserved resets_at",
		"FileTooLarge":                              "limit_bytes",
		"StorageQuota":                              "limit_bytes used_bytes",
		"UnfinishedBatches":                         "limit",
		"TooManyChildren":                           "limit",
		"TooManyFiles":                              "limit_bytes used_bytes limit",
		"Storage":                                   "retry_after_seconds",
	}
	for _, x := range examples() {
		want := strings.TrimSpace("code message type param request_id " + extras[x.name])
		if got := strings.Join(members(t, apierr.From(x.err)), " "); got != want {
			t.Errorf("%s: got members %s, want %s", x.name, got, want)
		}
	}
}

// members returns the names of the error object's members in their order.
func members(t *testing.T, e *apierr.Error) []string {
	t.Helper()
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(e.AppendJSON(nil, "req_1"), &outer); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(outer["error"]))
	if _, err := d.Token(); err != nil {
		t.Fatal(err)
	}
	var all []string
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(name))
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestEveryCodeHasAConstructor(t *testing.T) {
	constructed := map[apierr.Code]bool{}
	for _, x := range examples() {
		constructed[apierr.From(x.err).Code] = true
	}
	for _, code := range apierr.Codes() {
		if !constructed[code] {
			t.Errorf("no example has the code %s", code)
		}
	}
}

// The official SDKs ignore a Retry-After of a minute (Go) or more, and with 0 they would retry at once.
func TestEvery503HasARetryAfterFrom1To59(t *testing.T) {
	waits := []time.Duration{
		math.MinInt64, -time.Hour, 0, 1, time.Second, time.Second + 1, 59*time.Second + 1, time.Minute, time.Minute + 1, time.Hour, math.MaxInt64,
	}
	for _, wait := range waits {
		for name, err := range map[string]error{
			"Booting":     apierr.Booting("m", wait, 0, 0),
			"BreakerOpen": apierr.BreakerOpen("m", wait),
			"Overload":    apierr.Overload(apierr.NoMemory, "full", wait, nil),
			"BootFailed":  apierr.BootFailed("m", "", wait, nil),
		} {
			h := http.Header{}
			e := apierr.From(err)
			e.SetHeaders(h)
			got, err := strconv.Atoi(h.Get("Retry-After"))
			if err != nil || got < 1 || got > 59 || (wait <= 59*time.Second && time.Duration(got)*time.Second < wait) {
				t.Errorf("%s(%v): got Retry-After %q, want 1 to 59 and no less than the wait", name, wait, h.Get("Retry-After"))
			}
			if x := e.Extras[0]; e.Status() == 503 && (x.Name != "retry_after_seconds" || x.Value != int64(got)) {
				t.Errorf("%s(%v): got member %v, want retry_after_seconds %d as in Retry-After", name, wait, x, got)
			}
		}
	}
	for _, code := range apierr.Codes() {
		h := http.Header{}
		(&apierr.Error{Code: code}).SetHeaders(h)
		if has := h.Get("Retry-After") != ""; has != (code.Status() == 503) {
			t.Errorf("%s (%d): got Retry-After %q, want one on a 503 only", code, code.Status(), h.Get("Retry-After"))
		}
	}
}

func TestCauseIsInTheLogTextOnly(t *testing.T) {
	for _, x := range examples() {
		e := apierr.From(x.err)
		h := http.Header{}
		e.SetHeaders(h)
		if out := fmt.Sprint(string(e.AppendJSON(nil, "req_1")), h); strings.Contains(out, "hunter2") {
			t.Errorf("%s renders its cause: %s", x.name, out)
		}
	}
	for _, err := range []error{apierr.BadKey(errSecret), apierr.Unreachable("m", 1, errSecret), apierr.Overload(apierr.NoMemory, "full", 1, errSecret), apierr.Unexpected(errSecret)} {
		if !errors.Is(err, errSecret) || !strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the log text %q does not contain the cause", err)
		}
	}
}

// The message may quote the prompt.
func TestLogTextContainsNothingOfTheMessage(t *testing.T) {
	const prompt = "Dear diary"
	for _, err := range []error{
		apierr.InvalidField("user", "user: got "+prompt),
		apierr.UnknownField(prompt, ""),
		apierr.UnknownModel("model", prompt, nil, ""),
		apierr.UpstreamFailed(apierr.UpstreamServerError, prompt, 500, 1, nil),
		apierr.UpstreamRefused(prompt, "", 400),
	} {
		if strings.Contains(err.Error(), prompt) {
			t.Errorf("the log text %q contains the prompt", err)
		}
	}
}

func TestFromTurnsOtherErrorsIntoInternalError(t *testing.T) {
	e := apierr.From(fmt.Errorf("commit: %w", errSecret))
	if e.Code != apierr.Internal || e.Status() != 500 || !errors.Is(e, errSecret) {
		t.Errorf("got %v, want internal_error with the cause", e)
	}
	if out := string(e.AppendJSON(nil, "req_1")); strings.Contains(out, "commit") || strings.Contains(out, "hunter2") {
		t.Errorf("the response renders the cause: %s", out)
	}
}

func TestFromFindsAWrappedError(t *testing.T) {
	inner := apierr.BodyTooLarge(10)
	if e := apierr.From(fmt.Errorf("read: %w", errors.Join(errSecret, inner))); e.Code != apierr.RequestTooLarge {
		t.Errorf("got %v, want %s", e, apierr.RequestTooLarge)
	}
}

// A client can send a megabyte of text; the error must not quote all of it.
func TestErrorAboutLongTextIsShort(t *testing.T) {
	long := strings.Repeat("ž", 1<<20)
	for name, err := range map[string]error{
		"UnknownField":    apierr.UnknownField(long, ""),
		"UnknownModel":    apierr.UnknownModel("model", long, []string{"llama-8b"}, ""),
		"NoSuchPath":      apierr.NoSuchPath(long, long, ""),
		"WrongMethod":     apierr.WrongMethod(long, long, "POST"),
		"UnknownEncoding": apierr.UnknownEncoding(long),
		"InvalidField":    apierr.InvalidField(long, "duplicate"),
	} {
		if n := len(apierr.From(err).AppendJSON(nil, "req_1")); n > 1024 {
			t.Errorf("%s: got %d bytes, want at most 1024", name, n)
		}
	}
}

func TestClipCutsBetweenCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"":                            "",
		strings.Repeat("a", 80):       strings.Repeat("a", 80),
		strings.Repeat("a", 81):       strings.Repeat("a", 80) + "…",
		"a" + strings.Repeat("ž", 40): "a" + strings.Repeat("ž", 39) + "…",
	} {
		if got := apierr.Clip(in); got != want {
			t.Errorf("Clip(%q) is %q, want %q", in, got, want)
		}
	}
}

func FuzzRenderedErrorIsOneJSONObject(f *testing.F) {
	f.Add("plain", "temperature", int64(3))
	f.Add("\xff\xfe\xed\xa0\x80", "\x00\x1f\"\\", int64(-1))
	f.Add("\u2028</script>\u202e", strings.Repeat("ž", 100), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, a, b string, n int64) {
		for _, err := range []error{
			apierr.InvalidField(a, b),
			apierr.UnknownField(a, b),
			apierr.MalformedJSON(n, a),
			apierr.UnknownModel("model", a, []string{"llama-8b"}, b),
			apierr.ContextTooLong("prompt", "max_tokens", n, n, n, true),
			apierr.NoSuchPath(a, b, a),
			apierr.WrongMethod(a, b, "POST"),
			apierr.UnknownEncoding(a),
			apierr.Unreachable(a, int(n), errSecret),
			apierr.UpstreamFailed(apierr.VLLMEngineDead, a, int(n), 1, errSecret),
			apierr.UpstreamRefused(a, b, int(n)),
			apierr.Booting(a, time.Duration(n), time.Duration(n), time.Duration(n)),
			apierr.Overload(apierr.NoMemory, a, time.Duration(n), errSecret),
		} {
			e := apierr.From(err)
			out := e.AppendJSON([]byte("before"), b)
			out, found := bytes.CutPrefix(out, []byte("before"))
			var got struct {
				Error struct {
					Code, Message, Type string
					Param               *string
					RequestID           string `json:"request_id"`
				}
			}
			if err := json.Unmarshal(out, &got); err != nil || !found || bytes.ContainsAny(out, "\r\n") {
				t.Fatalf("error %v in %q, want one line with a JSON object", err, out)
			}
			if got.Error.Code != string(e.Code) || got.Error.Type != e.Code.Type() || (got.Error.Param == nil) != (e.Param == "") {
				t.Fatalf("%q does not render %+v", out, e)
			}
			if valid := strings.ToValidUTF8(a, "") == a; valid && e.Code == apierr.VLLMEngineDead && got.Error.Message != a {
				t.Fatalf("got message %q, want %q", got.Error.Message, a)
			}
			if len(members(t, e)) != 5+len(e.Extras) {
				t.Fatalf("an extra member is missing in %q", out)
			}
		}
	})
}
