package mockvllm_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

func TestSilentStreamsAreKeptAliveByComments(t *testing.T) {
	p := start(t, mockvllm.Options{KeepAliveInterval: time.Millisecond})
	p.InjectFault(mockvllm.Fault{Kind: "hang", AfterTokens: 2})
	reader, disconnect := open(t, p, map[string]any{"stream": true})
	defer disconnect()
	var read strings.Builder
	for strings.Count(read.String(), "\n: keep-alive\n\n") < 3 {
		line, err := reader.ReadString('\n')
		if err != nil {
			t.Fatalf("%v after %q", err, read.String())
		}
		read.WriteString(line)
	}
	p.ClearFaults()
	rest, err := io.ReadAll(reader)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("got %q, error %v, want the rest of the stream", rest, err)
	}
}

// TestSigtermMayLeaveRequestsHanging imitates 0.33, whose engine ends before it has aborted them.
func TestSigtermMayLeaveRequestsHanging(t *testing.T) {
	p := start(t, mockvllm.Options{Version: "0.33.0"})
	p.InjectFault(mockvllm.Fault{Kind: "sigterm_hang", AfterTokens: 1, ExitAfter: time.Hour})
	reader, disconnect := open(t, p, map[string]any{"stream": true, "max_tokens": 500, "ignore_eos": true})
	for range 2 {
		if _, err := reader.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	const want = `{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}`
	// A request that came before the engine's end would hang as well.
	poll.Until(t, "the engine to end", func() bool { return send(t, p, http.MethodGet, "/health", "").status == 503 })
	if a := send(t, p, http.MethodPost, completions, body(t, nil)); a.body != want {
		t.Errorf("a new request: got %s, want %s", a.body, want)
	}
	if p.Running() != 1 {
		t.Errorf("got %d running requests, want the one that hangs", p.Running())
	}
	disconnect()
	poll.Until(t, "the request to end with its client", func() bool { return p.Running() == 0 })
}

func TestBusyEnginesAreHealthy(t *testing.T) {
	for kind, want := range map[string]string{
		"overloaded": `"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",` +
			`"type":"ServiceUnavailableError","param":null,"code":503`,
		"backlog": `"The engine has reached its prefill token backlog limit. Please try again later or on a different instance.",` +
			`"type":"ServiceUnavailableError","param":null,"code":503`,
		"paused": `"Generation is paused. Please retry after it resumes.","type":"ServiceUnavailableError","param":null,"code":"engine_paused"`,
	} {
		p := start(t, mockvllm.Options{Version: "0.33.0"})
		p.InjectFault(mockvllm.Fault{Kind: kind})
		if a := send(t, p, http.MethodPost, completions, body(t, nil)); a.status != 503 || !strings.Contains(a.body, want) {
			t.Errorf("%s: got %d %s, want 503 with %s", kind, a.status, a.body, want)
		}
		if a := send(t, p, http.MethodGet, "/health", ""); a.status != 200 {
			t.Errorf("%s: /health got %d, want 200", kind, a.status)
		}
	}
}

func TestStreamIntervalIsTheTokensOfAnEvent(t *testing.T) {
	for version, want := range map[string]string{"0.26.0": "[1 1 1 1 1 1 1 1]", "0.33.0": "[1 3 3 1]"} {
		p := start(t, mockvllm.Options{Version: version})
		got, err := stream(t, p, map[string]any{"stream_interval": 3, "ignore_eos": true, "return_token_ids": true})
		if err != nil {
			t.Fatal(err)
		}
		var sizes []int
		for _, c := range decodeEvents(t, got) {
			sizes = append(sizes, len(c.Choices[0].TokenIDs))
		}
		if fmt.Sprint(sizes) != want {
			t.Errorf("%s: got events of %v tokens, want %s", version, sizes, want)
		}
	}
}

func TestTruncationSideSaysWhichTokensAreKept(t *testing.T) {
	p := start(t, mockvllm.Options{Version: "0.33.0"})
	for side, want := range map[string]string{"left": "[4 5]", "right": "[1 2]"} {
		c := complete(t, p, map[string]any{
			"prompt": []int{1, 2, 3, 4, 5}, "truncate_prompt_tokens": 2, "truncation_side": side, "return_token_ids": true,
		})
		if got := fmt.Sprint(c.Choices[0].PromptTokenIDs); got != want {
			t.Errorf("%s: got %s, want %s", side, got, want)
		}
	}
}

func TestStreamWithoutATokenHasItsFinishExceptIn032(t *testing.T) {
	for version, want := range map[string]int{"0.30.0": 2, "0.32.0": 1, "0.33.0": 2} {
		p := start(t, mockvllm.Options{Version: version})
		p.InjectFault(mockvllm.Fault{Kind: "abort"})
		got, err := stream(t, p, nil)
		if err != nil || len(got) != want {
			t.Errorf("%s: got %q, error %v, want %d events", version, got, err, want)
		}
	}
}

func TestWeightVersionsAreOfNewVersionsOnly(t *testing.T) {
	for version, want := range map[string]bool{"0.32.0": false, "0.33.0": true} {
		p := start(t, mockvllm.Options{Version: version})
		for _, streamed := range []bool{false, true} {
			a := send(t, p, http.MethodPost, completions, body(t, map[string]any{"return_weight_versions": true, "stream": streamed, "ignore_eos": true}))
			if got := strings.Count(a.body, `"weight_versions":[{"version":"default","start":0,"end":8}]`) == 1; got != want {
				t.Errorf("%s, stream %v: got %s, want weight_versions: %v", version, streamed, a.body, want)
			}
		}
	}
}
