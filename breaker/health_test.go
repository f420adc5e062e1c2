package breaker_test

import (
	"strings"
	"testing"

	"basegate/breaker"
)

// dead033 is what version 0.33 says of a dead engine, and of any other failure of its own.
const dead033 = `{"error":{"message":"The server had an error while processing your request.","type":"InternalServerError","param":null,"code":500}}`

func TestHealthDecidesWhatATextDoesNot(t *testing.T) {
	all := breaker.Healths // Silent, Healthy, Unhealthy, NotListening
	for name, c := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"an error of vLLM's":      {500, dead033, "server_error request_failed engine_dead aborted"},
		"the same in a stream":    {200, dead033, "server_error request_failed engine_dead aborted"},
		"a number as message":     {200, `{"error":{"message":"0","type":"InternalServerError","param":null,"code":500}}`, "server_error request_failed engine_dead aborted"},
		"a plain 500":             {500, "Internal Server Error", "server_error request_failed engine_dead aborted"},
		"an empty 500":            {500, "", "engine_dead request_failed engine_dead engine_dead"},
		"a backlog":               {503, `{"error":{"message":"Try later.","type":"ServiceUnavailableError","param":null,"code":503}}`, "server_error busy engine_dead aborted"},
		"a pause as a string":     {503, `{"error":"Model is paused for maintenance"}`, "server_error busy engine_dead aborted"},
		"a pause as detail":       {503, `{"detail":"Service Unavailable"}`, "server_error busy engine_dead aborted"},
		"a proxy's 503":           {503, "<html>Service Unavailable</html>", "server_error server_error server_error server_error"},
		"a 503 without a body":    {503, "", "server_error server_error server_error server_error"},
		"another server's 503":    {503, `{"message":"no healthy upstream"}`, "server_error server_error server_error server_error"},
		"a text of a dead engine": {500, `{"error":{"message":"EngineCore encountered an issue.","code":500}}`, "engine_dead engine_dead engine_dead engine_dead"},
		"a full queue":            {503, `{"error":{"message":"The engine is currently busy","code":503}}`, "busy busy busy busy"},
		"a client's mistake":      {400, `{"error":{"message":"no","code":400}}`, "client_error client_error client_error client_error"},
	} {
		var got []string
		for _, h := range all {
			o := breaker.Classify(c.status, []byte(c.body)).Judge(h)
			if o.Doubt != breaker.Certain {
				t.Errorf("%s: doubt is left", name)
			}
			got = append(got, o.Class.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestHealthDecidesWhyAConnectionBroke(t *testing.T) {
	for _, class := range []breaker.Class{breaker.Reset, breaker.Truncated} {
		o := breaker.Outcome{Class: class, Doubt: breaker.Broken}
		for h, want := range map[breaker.Health]breaker.Class{
			breaker.Silent: class, breaker.Healthy: class, breaker.Unhealthy: breaker.EngineDead, breaker.NotListening: breaker.Ended,
		} {
			if got := o.Judge(h).Class; got != want {
				t.Errorf("%s, health %d: got %s, want %s", class, h, got, want)
			}
		}
	}
}

// An error body may be longer than what is read of it, at any of its bytes.
func TestCutErrorBodyKeepsItsClassAndMessage(t *testing.T) {
	long := strings.Repeat(`a\"ž\u00e9\\`, 50)
	for text, class := range map[string]breaker.Class{
		"CUDA out of memory. Tried to allocate ":     breaker.OutOfMemory,
		"EngineCore encountered an issue. ":          breaker.EngineDead,
		"This model's maximum context length is 10 ": breaker.ContextLength,
	} {
		for _, head := range []string{`{"error":{"message":"`, `{"object":"error","message":"`, `{"detail":"`, `{"error":"`} {
			body := head + text + long
			for end := len(head + text); end < len(body); end++ {
				o := breaker.Classify(500, []byte(body[:end]))
				if o.Class != class || !strings.HasPrefix(o.Message, strings.TrimSpace(text)) {
					t.Fatalf("%s: got %s, %q", body[:end], o.Class, o.Message)
				}
			}
		}
	}
	o := breaker.Classify(400, []byte(`{"error":{"param":"prompt","message":"`+strings.Repeat("x", 1<<20)))
	if o.Class != breaker.ClientError || o.Param != "prompt" || len(o.Message) < 4000 {
		t.Errorf("got %s, param %q, a message of %d bytes", o.Class, o.Param, len(o.Message))
	}
}
