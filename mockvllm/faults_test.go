package mockvllm_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

const completions = "/v1/completions"

func TestEachFaultKindHasItsResponse(t *testing.T) {
	const defaultMessage = "Something went wrong on purpose."
	for _, test := range []struct {
		fault  string
		status int
		body   string // a substring
	}{
		{`{"kind":"error","status":418,"body":"short and stout"}`, 418, "short and stout"},
		{`{"kind":"nested"}`, 500, `{"error":{"message":"` + defaultMessage + `","type":"InternalServerError","param":null,"code":500}}`},
		{`{"kind":"flat"}`, 500, `{"object":"error","message":"` + defaultMessage + `","type":"InternalServerError","param":null,"code":500}`},
		{`{"kind":"text"}`, 500, "Internal Server Error"},
		{`{"kind":"ok_error"}`, 200, `{"error":{"message":"` + defaultMessage},
		{`{"kind":"nested","status":502,"message":"mine"}`, 502, `"message":"mine"`},
		{`{"kind":"context_length"}`, 400, "your prompt contains 8193 input tokens, which exceeds this limit"},
		{`{"kind":"context_length","wording":12}`, 400, "Input length (8192) exceeds model's maximum context length (8192)."},
		{`{"kind":"overloaded"}`, 503, "The engine is currently busy"},
		{`{"kind":"oom"}`, 500, "CUDA out of memory. Tried to allocate"},
		{`{"kind":"engine_dead"}`, 500, "The server had an error"},
		{`{"kind":"garbage"}`, 200, "neither JSON nor"},
		{`{"kind":"abort"}`, 200, `"text":"","logprobs":null,"finish_reason":"abort"`},
		{`{"kind":"no_finish"}`, 200, `"finish_reason":null`},
		{`{"kind":"error_event"}`, 500, `"message":"Internal server error"`},
	} {
		t.Run(test.fault, func(t *testing.T) {
			p := start(t, mockvllm.Options{})
			if a := send(t, p, http.MethodPost, "/mock/fault", test.fault); a.status != 200 {
				t.Fatal(a.body)
			}
			a := send(t, p, http.MethodPost, completions, body(t, nil))
			if a.status != test.status || !strings.Contains(a.body, test.body) || test.body == "" && a.body != "" {
				t.Errorf("got %d %s, want %d with %q", a.status, a.body, test.status, test.body)
			}
			if strings.Contains(test.fault, "engine_dead") {
				return
			}
			if again := send(t, p, http.MethodPost, completions, body(t, nil)); again.status != 200 {
				t.Errorf("the next request got %d %s, want 200: the fault applied twice", again.status, again.body)
			}
		})
	}
}

// streamWithFault streams a completion of nine tokens to which the fault applies.
func streamWithFault(t *testing.T, fault mockvllm.Fault) ([]string, error) {
	t.Helper()
	p := start(t, mockvllm.Options{})
	p.InjectFault(fault)
	return stream(t, p, map[string]any{"max_tokens": 9, "ignore_eos": true, "temperature": 0})
}

func TestFaultKindDeterminesHowAStreamEnds(t *testing.T) {
	for name, test := range map[string]struct {
		fault  mockvllm.Fault
		events int
		last   string // a substring of the last event
		broken bool   // reading the body fails
	}{
		"none":              {mockvllm.Fault{Kind: "abort", Path: "/elsewhere"}, 10, "[DONE]", false},
		"reset_mid":         {mockvllm.Fault{Kind: "reset_mid", AfterEvents: 3}, 3, "index", true},
		"reset_mid tokens":  {mockvllm.Fault{Kind: "reset_mid", AfterTokens: 4}, 4, "index", true},
		"cut":               {mockvllm.Fault{Kind: "cut", AfterEvents: 3}, 3, "index", true},
		"cut clean":         {mockvllm.Fault{Kind: "cut", AfterEvents: 3, Clean: true}, 3, "index", false},
		"abort":             {mockvllm.Fault{Kind: "abort", AfterTokens: 3}, 5, "[DONE]", false},
		"error_event":       {mockvllm.Fault{Kind: "error_event", AfterEvents: 2}, 4, "[DONE]", false},
		"no_finish":         {mockvllm.Fault{Kind: "no_finish"}, 10, "[DONE]", false},
		"no_finish early":   {mockvllm.Fault{Kind: "no_finish", AfterEvents: 2}, 3, "[DONE]", false},
		"no_done":           {mockvllm.Fault{Kind: "no_done"}, 9, `"finish_reason":"length"`, true},
		"no_done clean":     {mockvllm.Fault{Kind: "no_done", Clean: true}, 9, `"finish_reason":"length"`, false},
		"garbage":           {mockvllm.Fault{Kind: "garbage", AfterEvents: 2}, 2, "index", false},
		"merge":             {mockvllm.Fault{Kind: "merge"}, 4, "[DONE]", false},
		"oom":               {mockvllm.Fault{Kind: "oom", AfterEvents: 2}, 4, "[DONE]", false},
		"oom at once":       {mockvllm.Fault{Kind: "oom", InStream: true}, 2, "[DONE]", false},
		"engine_dead":       {mockvllm.Fault{Kind: "engine_dead", AfterTokens: 2}, 4, "[DONE]", false},
		"error_event first": {mockvllm.Fault{Kind: "error_event"}, 2, "[DONE]", false},
	} {
		t.Run(name, func(t *testing.T) {
			events, err := streamWithFault(t, test.fault)
			if len(events) != test.events || !strings.Contains(events[len(events)-1], test.last) || (err != nil) != test.broken {
				t.Errorf("got %d events and error %v, want %d events, the last with %q, broken %v: %.3000s",
					len(events), err, test.events, test.last, test.broken, strings.Join(events, "\n"))
			}
		})
	}
}

func TestResetAndCutGiveDistinctErrors(t *testing.T) {
	if _, err := streamWithFault(t, mockvllm.Fault{Kind: "reset_mid", AfterEvents: 3}); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset_mid: got %v, want ECONNRESET", err)
	}
	if _, err := streamWithFault(t, mockvllm.Fault{Kind: "cut", AfterEvents: 3}); !isEOF(err) {
		t.Errorf("cut: got %v, want an unexpected EOF", err)
	}
	p := start(t, mockvllm.Options{})
	for _, fault := range []mockvllm.Fault{{Kind: "reset_mid"}, {Kind: "cut"}} {
		p.InjectFault(fault)
		a := send(t, p, http.MethodPost, completions, body(t, nil))
		if a.err == nil || a.header.Get("Content-Length") == "" {
			t.Errorf("%+v: got error %v after %q, want a body shorter than its Content-Length", fault, a.err, a.body)
		}
	}
}

func TestResetConnectionsGetNoResponse(t *testing.T) {
	p := start(t, mockvllm.Options{})
	p.InjectFault(mockvllm.Fault{Kind: "reset"})
	if a := trySend(t, p, http.MethodPost, completions, body(t, nil)); a.status != 0 || a.err == nil {
		t.Errorf("got status %d and error %v, want no response", a.status, a.err)
	}
	if received := len(p.Requests()); received != 1 {
		t.Errorf("%d requests were read, want 1", received)
	}
	if a := send(t, p, http.MethodPost, completions, body(t, nil)); a.status != 200 {
		t.Errorf("the next request got %d, want 200: the fault applied twice", a.status)
	}
}

func TestHangLastsUntilTheClientDisconnects(t *testing.T) {
	p := start(t, mockvllm.Options{})
	p.InjectFault(mockvllm.Fault{Kind: "hang"})
	ctx, disconnect := context.WithCancel(t.Context())
	defer disconnect()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL()+completions, strings.NewReader(body(t, nil)))
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		response, err := client().Do(r)
		if err == nil {
			response.Body.Close()
		}
		failed <- err
	}()
	poll.Until(t, "the request", func() bool { return len(p.Requests()) == 1 })
	select {
	case <-failed:
		t.Fatal("the request ended while the fault hangs")
	case <-time.NewTimer(50 * time.Millisecond).C:
	}
	disconnect()
	if <-failed == nil {
		t.Fatal("got a response, want none while the fault hangs")
	}
	poll.Until(t, "the disconnect to be recorded", func() bool { return p.Requests()[0].ClientDisconnected() })
}

func TestStreamHangsUntilCleared(t *testing.T) {
	p := start(t, mockvllm.Options{})
	p.InjectFault(mockvllm.Fault{Kind: "hang", AfterEvents: 2})
	reader, disconnect := open(t, p, map[string]any{"stream": true, "max_tokens": 5, "ignore_eos": true})
	defer disconnect()
	for range 4 { // two events, each a line and an empty line
		if _, err := reader.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	p.ClearFaults()
	var rest strings.Builder
	if _, err := reader.WriteTo(&rest); err != nil || !strings.HasSuffix(rest.String(), "data: [DONE]\n\n") {
		t.Errorf("got error %v after %q, want a stream that ends with [DONE]", err, rest.String())
	}
}

func TestClearedHangCompletesTheRequest(t *testing.T) {
	p := start(t, mockvllm.Options{})
	p.InjectFault(mockvllm.Fault{Kind: "hang", Times: -1})
	done := make(chan result)
	go func() { done <- trySend(t, p, http.MethodPost, completions, body(t, nil)) }()
	poll.Until(t, "the request", func() bool { return len(p.Requests()) == 1 })
	if a := send(t, p, http.MethodDelete, "/mock/fault", ""); a.body != "[]\n" {
		t.Errorf("faults after the clear: got %q, want none", a.body)
	}
	if a := <-done; a.status != 200 {
		t.Errorf("got %d, error %v, want 200", a.status, a.err)
	}
}

func TestSlowStreamWaitsBetweenTwoTokens(t *testing.T) {
	p := start(t, mockvllm.Options{})
	fields := map[string]any{"stream": true, "max_tokens": 9, "ignore_eos": true, "temperature": 0}
	p.InjectFault(mockvllm.Fault{Kind: "slow", Delay: "1h"})
	slow, disconnect := open(t, p, fields)
	defer disconnect()
	for range 2 { // an event and the empty line behind it
		if _, err := slow.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	more := make(chan error, 1)
	go func() {
		_, err := slow.ReadString('\n')
		more <- err
	}()
	if got, err := stream(t, p, fields); err != nil || len(got) != 10 {
		t.Errorf("another stream: got %d events and error %v, want 9 and [DONE]", len(got), err)
	}
	p.InjectFault(mockvllm.Fault{Kind: "slow", Delay: "1ms"})
	if got, err := stream(t, p, fields); err != nil || len(got) != 10 {
		t.Errorf("a slow stream: got %d events and error %v, want 9 and [DONE]", len(got), err)
	}
	select {
	case err := <-more:
		t.Errorf("the stream went on before its delay had passed, error %v", err)
	default:
	}
}

func TestDeadEngineStaysDeadUntilCleared(t *testing.T) {
	p := start(t, mockvllm.Options{TokenDelay: 5 * time.Millisecond})
	reader, disconnect := open(t, p, map[string]any{"stream": true, "max_tokens": 5000, "ignore_eos": true})
	defer disconnect()
	if _, err := reader.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	p.InjectFault(mockvllm.Fault{Kind: "engine_dead"})
	for range 2 {
		if a := send(t, p, http.MethodPost, completions, body(t, nil)); a.status != 500 {
			t.Errorf("got %d %s, want 500", a.status, a.body)
		}
	}
	var rest strings.Builder
	if _, err := reader.WriteTo(&rest); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(rest.String(), `"code": 500}}`+"\n\ndata: [DONE]\n\n") {
		t.Errorf("the other stream ended with %q, want an error of code 500 and [DONE]", rest.String()[max(0, rest.Len()-300):])
	}
	if a := send(t, p, http.MethodGet, "/health", ""); a.status != 503 || a.body != "" {
		t.Errorf("/health: got %d %q, want 503 and no body", a.status, a.body)
	}
	p.ClearFaults()
	if a := send(t, p, http.MethodGet, "/health", ""); a.status != 200 {
		t.Errorf("/health after the clear: got %d, want 200", a.status)
	}
}

func TestDeadProcessRefusesConnectionsUntilItsRestart(t *testing.T) {
	t.Parallel() // it waits
	p := start(t, mockvllm.Options{})
	p.InjectFault(mockvllm.Fault{Kind: "killed", RestartAfter: "3s"})
	trySend(t, p, http.MethodPost, completions, body(t, nil))
	refused := func() bool {
		return errors.Is(trySend(t, p, http.MethodGet, "/health", "").err, syscall.ECONNREFUSED)
	}
	poll.Until(t, "the exit", refused)
	poll.Until(t, "the restart", func() bool { return trySend(t, p, http.MethodGet, "/health", "").status == 200 })
	p.InjectFault(mockvllm.Fault{Kind: "killed"})
	trySend(t, p, http.MethodPost, completions, body(t, nil))
	poll.Until(t, "the second exit", refused)
	p.ClearFaults()
	poll.Until(t, "the second restart", func() bool { return trySend(t, p, http.MethodGet, "/health", "").status == 200 })
}

func TestFaultAppliesToItsPathOnly(t *testing.T) {
	p := start(t, mockvllm.Options{})
	for _, path := range []string{"/health", "/tokenize", "/v1/models"} {
		p.InjectFault(mockvllm.Fault{Kind: "nested", Path: path, Times: 2})
		if a := send(t, p, http.MethodPost, completions, body(t, nil)); a.status != 200 {
			t.Errorf("completion with a fault for %s: got %d, want 200", path, a.status)
		}
		for _, want := range []int{500, 500, 0} {
			if a := send(t, p, http.MethodGet, path, ""); (a.status == 500) != (want == 500) {
				t.Errorf("%s: got %d, want the fault's 500: %v", path, a.status, want == 500)
			}
		}
	}
}

func TestEngineDeathResponseDependsOnVersion(t *testing.T) {
	for version, want := range map[string]struct {
		status       int
		plain, event string
		health       int
	}{
		"0.8.5":  {500, "", `{"error": {"object": "error", "message": "Engine loop is not running.`, 500},
		"0.11.0": {500, `"type":"InternalServerError"`, `"type": "BadRequestError", "param": null, "code": 400`, 503},
		"0.32.0": {500, `"type":"InternalServerError"`, `"code": 500`, 503},
		"0.33.0": {500, `"The server had an error while processing your request."`, `"The server had an error while processing your request."`, 503},
	} {
		p := start(t, mockvllm.Options{Version: version})
		p.InjectFault(mockvllm.Fault{Kind: "engine_dead", AfterTokens: 2})
		a := send(t, p, http.MethodPost, completions, body(t, map[string]any{"stream": true, "ignore_eos": true}))
		if !strings.Contains(a.body, want.event) || strings.HasSuffix(a.body, "data: [DONE]\n\n") == (want.event == "") {
			t.Errorf("%s: got stream %s, error %v, want it to contain %q", version, a.body, a.err, want.event)
		}
		if a := send(t, p, http.MethodPost, completions, body(t, nil)); a.status != want.status ||
			!strings.Contains(a.body, want.plain) || want.plain == "" && a.body != "" {
			t.Errorf("%s: got %d %s, want %d with %q", version, a.status, a.body, want.status, want.plain)
		}
		if a := send(t, p, http.MethodGet, "/health", ""); a.status != want.health {
			t.Errorf("%s: /health got %d, want %d", version, a.status, want.health)
		}
	}
}

// TestProcessEndAbortsOrCutsAllRequests covers requests that run without the fault, and the restart.
func TestProcessEndAbortsOrCutsAllRequests(t *testing.T) {
	for kind, finish := range map[string]string{"sigterm": `"finish_reason":"abort"`, "killed": ""} {
		p := start(t, mockvllm.Options{TokenDelay: 5 * time.Millisecond})
		other := make(chan result)
		go func() {
			other <- trySend(t, p, http.MethodPost, completions, body(t, map[string]any{"max_tokens": 5000, "ignore_eos": true}))
		}()
		awaitMetric(t, p, "vllm:generation_tokens_total", 1)
		p.InjectFault(mockvllm.Fault{Kind: kind, AfterTokens: 2, RestartAfter: "50ms"})
		ended := trySend(t, p, http.MethodPost, completions, body(t, map[string]any{"ignore_eos": true}))
		for name, a := range map[string]result{"other": <-other, "own": ended} {
			if finish == "" && a.err == nil || !strings.Contains(a.body, finish) {
				t.Errorf("%s: %s request got %d %s, error %v, want %q", kind, name, a.status, a.body, a.err, finish)
			}
		}
		poll.Until(t, "the server to be back", func() bool {
			return trySend(t, p, http.MethodPost, completions, body(t, nil)).status == 200
		})
		if p.Requests()[0].ClientDisconnected() {
			t.Errorf("%s: the process's end is recorded as a client disconnect", kind)
		}
	}
}

func TestProcessEndRefusesConnectionsUntilCleared(t *testing.T) {
	p := start(t, mockvllm.Options{})
	p.InjectFault(mockvllm.Fault{Kind: "sigterm"})
	if a := send(t, p, http.MethodPost, completions, body(t, nil)); !strings.Contains(a.body, "abort") {
		t.Errorf("got %s, want an aborted completion", a.body)
	}
	poll.Until(t, "connections to be refused", func() bool {
		return errors.Is(trySend(t, p, http.MethodGet, "/health", "").err, syscall.ECONNREFUSED)
	})
	p.ClearFaults()
	poll.Until(t, "the server to be back", func() bool { return trySend(t, p, http.MethodGet, "/health", "").status == 200 })
}

func TestInvalidFaultsAreRejected(t *testing.T) {
	p := start(t, mockvllm.Options{})
	for body, want := range map[string]string{
		`{"kind":"oops"}`:                        `kind must be one of error, nested,`,
		`{"kind":"oom","tims":1}`:                `unknown field \"tims\"`,
		`{"kind":"killed","restart_after":"1"}`:  `restart_after must be a duration like \"250ms\", got \"1\"`,
		`{"kind":"slow","delay":"1"}`:            `delay must be a duration like \"250ms\", got \"1\"`,
		`{"kind":"slow"}`:                        `delay must be a duration like \"250ms\", got \"\"`,
		`{"kind":"oom","times":-2}`:              `times must be -1`,
		`{"kind":"oom","path":"health"}`:         `path must begin with /`,
		`{"kind":"error","status":99}`:           `status must be between 200 and 599, got 99`,
		`{"kind":"context_length","wording":99}`: `wording must be between 1 and 17`,
		`{"kind":"merge","tokens":-1}`:           `must not be negative`,
		`[]`:                                     `cannot unmarshal array`,
	} {
		a := send(t, p, http.MethodPost, "/mock/fault", body)
		if a.status != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%s: got %d %s, want 400 with %q", body, a.status, a.body, want)
		}
	}
}

func TestFaultsRoundTripThroughTheControlAPI(t *testing.T) {
	p := start(t, mockvllm.Options{})
	const given = `{"kind":"killed","path":"*","times":3,"after_tokens":5,"restart_after":"20ms"}`
	send(t, p, http.MethodPost, "/mock/fault", given)
	if a := send(t, p, http.MethodGet, "/mock/fault", ""); a.body != "["+given+"]\n" {
		t.Errorf("got %q, want [%s]", a.body, given)
	}
}
