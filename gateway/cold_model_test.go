package gateway_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/mockvllm"
)

// The context and the version that a model reported before the gateway was restarted still refuse requests while the
// model is cold, and do so without starting it.
func TestColdModelIsJudgedByItsEarlierBootAfterARestart(t *testing.T) {
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/m"}, Version: "0.9.2", MaxModelLen: 200})
	if err != nil {
		t.Fatal(err)
	}
	closeMock := sync.OnceValue(mock.Close)
	t.Cleanup(func() { closeMock() })
	address, err := url.Parse(mock.URL())
	if err != nil {
		t.Fatal(err)
	}
	m := model("m", address)
	m.Backends[0].Launch = &config.Launch{
		Start: []string{"true"}, Stop: []string{"true"}, BootEstimate: time.Minute, BootTimeout: time.Minute,
	}
	c := newConfig(t, m)
	secret := newKey(t, c)
	first := start(t, c)
	if status, body := get(t, first, secret, "/v1/completions", `{"model":"m","prompt":"x"}`); status != http.StatusOK {
		t.Fatalf("while the model runs: got %d %s", status, body)
	}
	if err := first.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := closeMock(); err != nil {
		t.Fatal(err)
	}

	second := start(t, c)
	for _, path := range []string{"/v1/completions", "/v1/estimate"} {
		for _, r := range []struct{ body, code, part string }{
			{`"max_tokens":200`, "context_length_exceeded", `"max_model_len":200`},
			{`"cache_salt":"s"`, "invalid_request", "which runs vLLM 0.9"},
			{`"structured_outputs":{"json":{},"disable_any_whitespace":true}`, "invalid_request", "which runs vLLM 0.9"},
		} {
			status, body := get(t, second, secret, path, `{"model":"m","prompt":"x",`+r.body+`}`)
			if status != http.StatusBadRequest || gjson.Get(body, "error.code").Str != r.code || !strings.Contains(body, r.part) {
				t.Errorf("%s with %s: got %d %s, want 400 %s with %s", path, r.body, status, body, r.code, r.part)
			}
		}
	}
	_, body := get(t, second, secret, "/v1/models/m", "")
	if got := gjson.Get(body, "status").Str; got != fleet.StatusCold || gjson.Get(body, "max_model_len").Int() != 200 {
		t.Errorf("after the refusals: got %s, want status cold and max_model_len 200", body)
	}
	booting := send(t, second.Addr(), secret, "/v1/completions", `{"model":"m","prompt":"x"}`)
	body = readBody(t, booting)
	e := gjson.Get(body, "error")
	if booting.StatusCode != http.StatusServiceUnavailable || e.Get("code").Str != "modal_cold_boot" {
		t.Errorf("a request that may fit: got %d %s, want 503 modal_cold_boot", booting.StatusCode, body)
	}
	retry := booting.Header.Get("Retry-After")
	if elapsed := e.Get("boot_elapsed_seconds"); e.Get("boot_estimate_seconds").Int() != 60 || !elapsed.Exists() ||
		e.Get("retry_after_seconds").Int() <= elapsed.Int() || e.Get("retry_after_seconds").Raw != retry || booting.Header.Get("X-Should-Retry") != "true" {
		t.Errorf("a request that may fit: got %v %s, want the boot's estimate, what has passed of it, and when to retry", booting.Header, body)
	}
}
