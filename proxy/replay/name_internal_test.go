package replay

import (
	"bytes"
	"encoding/json"
	"iter"
	"slices"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// fieldsOf returns the fields of a JSON object without nulls, in their order, as package validate does.
func fieldsOf(tb testing.TB, body string) iter.Seq2[string, []byte] {
	tb.Helper()
	d := jsontext.NewDecoder(bytes.NewReader([]byte(body)))
	var fields []field
	if _, err := d.ReadToken(); err != nil {
		tb.Fatal(err)
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			tb.Fatal(err)
		}
		text := name.String()
		value, err := d.ReadValue()
		if err != nil {
			tb.Fatal(err)
		}
		if value.Kind() != 'n' {
			fields = append(fields, field{text, bytes.Clone(bytes.TrimSpace(value))})
		}
	}
	return func(yield func(string, []byte) bool) {
		for _, f := range fields {
			if !yield(f.name, f.value) {
				return
			}
		}
	}
}

func canonicalOf(tb testing.TB, body string) string {
	tb.Helper()
	got, err := appendBody(nil, &Request{Checkpoint: "org/M", Fields: fieldsOf(tb, body)})
	if err != nil {
		tb.Fatalf("%s: %v", body, err)
	}
	return string(got)
}

func TestCanonicalBody(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","prompt":"a"}`:                                         `{"model":"org/M","prompt":"a"}`,
		`{ "prompt" : "a b","model":"x"}`:                                    `{"model":"org/M","prompt":"a b"}`,
		`{"seed":9007199254740993,"temperature":0.0,"top_p":1e0,"min_p":-0}`: `{"min_p":-0,"seed":9007199254740993,"temperature":0.0,"top_p":1e0}`,
		`{"prompt":"\u0061\/\u00e9\n\u0001\ud83d\ude00"}`:                    `{"prompt":"a/é\n\u0001😀"}`,
		`{"user":"u","prompt_cache_key":"k","stop":null,"prompt":[1, 2]}`:    `{"prompt":[1,2]}`,
		`{"structured_outputs":{"json":{"b": 1,"a":{"d":1,"c":2}}}}`:         `{"structured_outputs":{"json":{"b":1,"a":{"d":1,"c":2}}}}`,
	} {
		if got := canonicalOf(t, body); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", body, got, want)
		}
	}
}

// The canonical form means the same, is its own canonical form, and does not depend on the order of fields or white space.
func FuzzCanonicalBody(f *testing.F) {
	for _, seed := range []string{
		`{"prompt":"a b\\\" \u00e9","seed":12345678901234567890,"a":[1, {"x" : null}]}`, `{"a":1e400,"b":"\ud800"}`, `{"a":{"a":" "},"":[]}`, `{"a":"<&>\u2028"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if jsontext.Value(body).Kind() != '{' || !jsontext.Value(body).IsValid() {
			t.Skip()
		}
		got := canonicalOf(t, body)
		if again := canonicalOf(t, got); again != got {
			t.Errorf("%q: canonical form %q has the canonical form %q", body, got, again)
		}
		formatted := jsontext.Value(got)
		if err := formatted.Compact(jsontext.PreserveRawStrings(false)); err != nil || string(formatted) != got {
			t.Errorf("%q: got %q, which is not minimal: %q, %v", body, got, formatted, err)
		}
		var before, after map[string]json.RawMessage
		if json.Unmarshal([]byte(body), &before) != nil || json.Unmarshal([]byte(got), &after) != nil {
			t.Skip() // numbers that encoding/json does not have, or its own view of UTF-8
		}
		for name, value := range before {
			if slices.Contains(append(ignored, "model"), name) || string(value) == "null" {
				continue
			}
			a, b := jsontext.Value(bytes.Clone(value)), jsontext.Value(after[name])
			if a.Canonicalize() != nil || b.Canonicalize() != nil || !bytes.Equal(a, b) {
				t.Errorf("%q: %s is %s in the canonical form, want %s", body, name, b, a)
			}
		}
	})
}

func callOf(tb testing.TB, account, body string) *Call {
	tb.Helper()
	return callOfAdapter(tb, account, "", body)
}

func callOfAdapter(tb testing.TB, account, adapter, body string) *Call {
	tb.Helper()
	s := New(nil, Settings{}, nil)
	c, err := s.NewCall(&Request{
		Account: account, Endpoint: "/v1/completions", Checkpoint: "org/M", Adapter: adapter, MaxTokens: 16, Fields: fieldsOf(tb, body),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestNamesAreThoseOfEqualRequestsOnly(t *testing.T) {
	secret, server := []byte("secret"), Server{"0.33.0", "H100"}
	const body = `{"model":"m","prompt":"a","seed":9007199254740993}`
	name := callOf(t, "acc", body).nameOf(secret, server)
	if got := callOf(t, "acc", `{ "seed":9007199254740993, "user":"x", "prompt":"\u0061","model":"alias"}`).nameOf(secret, server); got != name {
		t.Error("an equal request has another name")
	}
	adapter := callOfAdapter(t, "acc", "sql@1", body).nameOf(secret, server)
	if callOfAdapter(t, "acc", "sql@2", body).nameOf(secret, server) == adapter {
		t.Error("another version of an adapter has the same name")
	}
	for what, other := range map[string]Name{
		"account": callOf(t, "acb", body).nameOf(secret, server),
		"seed":    callOf(t, "acc", `{"model":"m","prompt":"a","seed":9007199254740992}`).nameOf(secret, server),
		"stream":  callOf(t, "acc", `{"model":"m","prompt":"a","seed":9007199254740993,"stream":true}`).nameOf(secret, server),
		"version": callOf(t, "acc", body).nameOf(secret, Server{"0.33.1", "H100"}),
		"GPU":     callOf(t, "acc", body).nameOf(secret, Server{"0.33.0", "A100"}),
		"shifted": callOf(t, "acc", body).nameOf(secret, Server{"0.33.0H100", ""}),
		"secret":  callOf(t, "acc", body).nameOf([]byte("secreu"), server),
		"adapter": adapter,
	} {
		if other == name {
			t.Errorf("another %s has the same name", what)
		}
	}
}

func TestOnlyTheRequestOpensAResponse(t *testing.T) {
	secret, server := []byte("secret"), Server{"0.33.0", "H100"}
	c := callOf(t, "acc", `{"prompt":"a"}`)
	name := c.nameOf(secret, server)
	r := &Response{Body: []byte("the completion"), Origin: Origin{Server: server, RequestID: "req_1", ContentType: "application/json", PromptTokens: 3}}
	seal := func() []byte {
		sealed, err := c.seal(secret, server, name, r)
		if err != nil {
			t.Fatal(err)
		}
		return sealed
	}
	first, second := seal(), seal()
	if bytes.Equal(first, second) || bytes.Contains(first, []byte("completion")) || bytes.Contains(first, []byte("req_1")) {
		t.Error("the same response is the same ciphertext, or is readable")
	}
	got, err := c.open(secret, server, name, bytes.Clone(first))
	if err != nil || string(got.Body) != string(r.Body) || got.RequestID != r.RequestID || got.PromptTokens != 3 {
		t.Fatalf("got %+v, %v", got, err)
	}
	other := callOf(t, "acc", `{"prompt":"b"}`)
	if _, err := other.open(secret, server, name, bytes.Clone(first)); err == nil {
		t.Error("another request opens the response")
	}
	if _, err := c.open(secret, server, Name{}, bytes.Clone(first)); err == nil {
		t.Error("the response opens under another name")
	}
	for i := range first {
		damaged := bytes.Clone(first)
		damaged[i] ^= 1
		if _, err := c.open(secret, server, name, damaged); err == nil {
			t.Fatalf("a response whose byte %d has changed opens", i)
		}
	}
}

// What a miss costs beside the storage and the database: the name, the key and the encryption, for 1 KB of request and response.
func BenchmarkMiss(b *testing.B) {
	body := `{"model":"m","prompt":"` + string(bytes.Repeat([]byte("word "), 180)) + `","max_tokens":16,"temperature":0,"seed":1234}`
	s := New(nil, Settings{}, nil)
	secret, server := make([]byte, secretBytes), Server{"0.33.0", "H100"}
	r := &Request{Account: "acc_0123456789", Endpoint: "/v1/completions", Checkpoint: "org/M", Fields: fieldsOf(b, body)}
	kept := &Response{Body: make([]byte, 1000), Origin: Origin{Server: server, RequestID: "req_1", ContentType: "application/json"}}
	b.ReportAllocs()
	for b.Loop() {
		c, err := s.NewCall(r)
		if err != nil {
			b.Fatal(err)
		}
		c.nameOf(secret, server)         // of Find
		name := c.nameOf(secret, server) // of Keep
		if _, err := c.seal(secret, server, name, kept); err != nil {
			b.Fatal(err)
		}
	}
}
