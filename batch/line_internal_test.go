package batch

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestResultContainsTheBodyUnchanged(t *testing.T) {
	for _, body := range []string{
		`{}`,
		`{ "text" : "<b>&\u2028</b> \u00e9 é" ,"n":1.0,"big":12345678901234567890,"dup":1,"dup":2}`,
		"{\"sep\":\"\u2028\u2029\",\"slash\":\"\\/\"}",
	} {
		got, err := encodeResult(resultObject{ID: "batch_req_1", CustomID: `a"<>&` + "\u2028", Response: &responseObject{200, "req_1", json.RawMessage(body + "\n")}})
		if err != nil {
			t.Fatal(err)
		}
		if want := `"response":{"status_code":200,"request_id":"req_1","body":` + body + `},"error":null}` + "\n"; !strings.HasSuffix(string(got), want) {
			t.Errorf("got %s, want it to end in %s", got, want)
		}
		var o resultObject
		if err := json.Unmarshal(got, &o); err != nil || o.ID != "batch_req_1" || o.CustomID != `a"<>&`+"\u2028" || o.Error != nil {
			t.Errorf("%s: %v, %+v", got, err, o)
		}
	}
}

func TestResultIsOneLine(t *testing.T) {
	got, err := encodeResult(resultObject{Response: &responseObject{200, "req_1", json.RawMessage("{\r\n \"a\": 1\n}\r\n")}})
	if err != nil || strings.Count(string(got), "\n") != 1 || strings.Contains(string(got), "\r") || !json.Valid(got) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestResultWithoutResponse(t *testing.T) {
	got, err := encodeResult(resultObject{ID: "batch_req_1", CustomID: "a", Error: &errorObject{"batch_expired", "too late"}})
	if want := `{"id":"batch_req_1","custom_id":"a","response":null,"error":{"code":"batch_expired","message":"too late"}}` + "\n"; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestResultOfMalformedBodyIsAnError(t *testing.T) {
	for _, body := range []string{``, `{`, `{}}`, `x`} {
		if got, err := encodeResult(resultObject{Response: &responseObject{200, "req_1", json.RawMessage(body)}}); err == nil {
			t.Errorf("%q is encoded as %s", body, got)
		}
	}
}
