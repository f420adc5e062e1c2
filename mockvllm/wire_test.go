package mockvllm_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"basegate/mockvllm"
)

func TestBusyEnginesAreHealthy(t *testing.T) {
	p := start(t, mockvllm.Options{})
	p.InjectFault(mockvllm.Fault{Kind: "overloaded"})
	const want = `"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",` +
		`"type":"ServiceUnavailableError","param":null,"code":503`
	if a := send(t, p, http.MethodPost, completions, body(t, nil)); a.status != 503 || !strings.Contains(a.body, want) {
		t.Errorf("got %d %s, want 503 with %s", a.status, a.body, want)
	}
	if a := send(t, p, http.MethodGet, "/health", ""); a.status != 200 {
		t.Errorf("/health got %d, want 200", a.status)
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
