package batch

import (
	"encoding/json"
	"strings"
	"testing"

	"basegate/proxy"
)

func TestResultContainsTheBodyUnchanged(t *testing.T) {
	for _, body := range []string{
		`{}`,
		`{ "text" : "<b>&\u2028</b> \u00e9 é" ,"n":1.0,"big":12345678901234567890,"dup":1,"dup":2}`,
		"{\"sep\":\"\u2028\u2029\",\"slash\":\"\\/\"}",
	} {
		got := encodeResult(`a"<>&`+"\u2028", nil, &proxy.LineResult{Status: 200, RequestID: "req_1", Body: []byte(body + "\n")})
		if want := `"response":{"status_code":200,"request_id":"req_1","body":` + body + `},"error":null}` + "\n"; !strings.HasSuffix(string(got), want) {
			t.Errorf("got %s, want it to end in %s", got, want)
		}
		var o struct {
			ID       string
			CustomID string `json:"custom_id"`
		}
		if err := json.Unmarshal(got, &o); err != nil || !strings.HasPrefix(o.ID, "batch_req_") || o.CustomID != `a"<>&`+"\u2028" {
			t.Errorf("%s: %v, %+v", got, err, o)
		}
	}
}

func TestResultIsOneLine(t *testing.T) {
	got := encodeResult("", nil, &proxy.LineResult{Status: 200, Body: []byte("{\r\n \"a\": 1\n}\r\n")})
	if strings.Count(string(got), "\n") != 1 || strings.Contains(string(got), "\r") || !json.Valid(got) {
		t.Errorf("got %q", got)
	}
}

func TestResultWithoutResponse(t *testing.T) {
	got := encodeResult("a", &errorObject{"batch_expired", "too late"}, &proxy.LineResult{})
	want := `"custom_id":"a","response":null,"error":{"code":"batch_expired","message":"too late"}}` + "\n"
	if !strings.HasSuffix(string(got), want) || !json.Valid(got) {
		t.Errorf("got %s, want it to end in %s", got, want)
	}
}

func TestMalformedBodyIsAnError(t *testing.T) {
	for _, body := range []string{``, `{`, `{}}`, `x`} {
		if o := newResult(lineRef{}, "a", nil, proxy.LineResult{Body: []byte(body)}); o.success || !json.Valid(o.text) {
			t.Errorf("%q is encoded as %s", body, o.text)
		}
	}
}
