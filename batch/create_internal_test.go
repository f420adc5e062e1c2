package batch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	apierr "basegate/errors"
)

// pairs returns an object of n strings.
func pairs(n int) string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint(i)] = "x"
	}
	text, _ := json.Marshal(m)
	return string(text)
}

func TestBatchIsParsed(t *testing.T) {
	b, err := parseBatch([]byte(`{"input_file_id":"file-a","endpoint":"/v1/completions","completion_window":"7d",
		"metadata":{ "a": "ü" },"output_expires_after":{"anchor":"created_at","seconds":3600}}`), endpoints, true)
	if err != nil {
		t.Fatal(err)
	}
	if b.InputFile != "file-a" || b.Endpoint != "/v1/completions" || b.Window != "7d" || string(b.Metadata) != `{"a":"ü"}` || b.outputKeep != 3600 {
		t.Errorf("got %+v with the metadata %s", b, b.Metadata)
	}
	for _, more := range []string{
		`"metadata":null`, `"metadata":{}`, `"output_expires_after":null`, `"output_expires_after":{"seconds":2592000}`, `"metadata":` + pairs(16),
		`"metadata":{"` + strings.Repeat("ü", 64) + `":"` + strings.Repeat("ü", 512) + `"}`,
	} {
		if _, err := parseBatch([]byte(`{"input_file_id":"f","endpoint":"/v1/completions","completion_window":"1h",`+more+`}`), endpoints, true); err != nil {
			t.Errorf("%s: %v", more, apierr.From(err).Message)
		}
	}
	s := new(Service)
	s.settings.Store(new(Settings))
	scored := []byte(`{"input_file_id":"f","endpoint":"/v1/loglikelihood","completion_window":"1h"}`)
	if b, err := parseBatch(scored, s.Endpoints(), true); err != nil || b.Endpoint != "/v1/loglikelihood" {
		t.Errorf("a batch of log-likelihoods: got %+v, %v", b, err)
	}
}

func TestWrongBatchIsRefused(t *testing.T) {
	const file, endpoint, window = `"input_file_id":"f"`, `"endpoint":"/v1/completions"`, `"completion_window":"24h"`
	for _, c := range []struct{ members, code, param string }{
		{endpoint + "," + window, "invalid_request", "input_file_id"},
		{file + "," + window, "invalid_request", "endpoint"},
		{file + "," + endpoint, "invalid_request", "completion_window"},
		{`"input_file_id":null`, "invalid_request", "input_file_id"},
		{`"input_file_id":""`, "invalid_request", "input_file_id"},
		{`"input_file_id":1`, "invalid_request", "input_file_id"},
		{`"endpoint":null`, "invalid_request", "endpoint"},
		{`"endpoint":"/v1/embeddings"`, "invalid_request", "endpoint"},
		{`"endpoint":"/v1/completions/"`, "invalid_request", "endpoint"},
		{`"completion_window":"2h"`, "invalid_request", "completion_window"},
		{`"completion_window":24`, "invalid_request", "completion_window"},
		{`"metadata":[]`, "invalid_request", "metadata"},
		{`"metadata":"x"`, "invalid_request", "metadata"},
		{`"metadata":{"a":1}`, "invalid_request", "metadata"},
		{`"metadata":{"a":null}`, "invalid_request", "metadata"},
		{`"metadata":` + pairs(17), "invalid_request", "metadata"},
		{`"metadata":{"` + strings.Repeat("x", 65) + `":"x"}`, "invalid_request", "metadata"},
		{`"metadata":{"a":"` + strings.Repeat("x", 513) + `"}`, "invalid_request", "metadata"},
		{`"metadata":{"a":"x","a":"y"}`, "invalid_request", "a"},
		{`"output_expires_after":3600`, "invalid_request", "output_expires_after"},
		{`"output_expires_after":{}`, "invalid_request", "output_expires_after"},
		{`"output_expires_after":{"anchor":"created_at"}`, "invalid_request", "output_expires_after"},
		{`"output_expires_after":{"anchor":"now","seconds":3600}`, "invalid_request", "output_expires_after"},
		{`"output_expires_after":{"seconds":3599}`, "invalid_request", "output_expires_after"},
		{`"output_expires_after":{"seconds":2592001}`, "invalid_request", "output_expires_after"},
		{`"output_expires_after":{"seconds":"3600"}`, "invalid_request", "output_expires_after"},
		{`"output_expires_after":{"seconds":3600.5}`, "invalid_request", "output_expires_after"},
		{`"output_expires_after":{"seconds":3600,"x":1}`, "invalid_request", "output_expires_after"},
		{`"priority":1`, "invalid_request", "priority"},
		{`"priority":null`, "invalid_request", "priority"},
		{`"metadata":1,"endpoint":1`, "invalid_request", "metadata"},
		{`"zoom":1,"endpoint":1`, "invalid_request", "zoom"},
		{`"output_expires_after":{"seconds":3600,"seconds":3600}`, "invalid_request", "seconds"},
		{file + "," + file, "invalid_request", "input_file_id"},
		{file + `,"input_file\u005fid":"f"`, "invalid_request", "input_file_id"},
		{`"priority":1,` + file + "," + file, "invalid_request", "input_file_id"},
		{file + "," + file + `,"priority":01`, "invalid_request", "input_file_id"},
		{file + `,"priority":01`, "bad_json", ""},
		{`"metadata":` + strings.Repeat("[", 31) + strings.Repeat("]", 31), "invalid_request", "metadata"},
		{`"metadata":` + strings.Repeat("[", 32) + strings.Repeat("]", 32), "bad_json", ""},
		{`"priority":` + strings.Repeat(`{"a":`, 32) + "1" + strings.Repeat("}", 32), "bad_json", ""},
	} {
		_, err := parseBatch([]byte("{"+c.members+"}"), endpoints, true)
		if err == nil {
			t.Errorf("%s is accepted", c.members)
			continue
		}
		if e := apierr.From(err); string(e.Code) != c.code || e.Param != c.param {
			t.Errorf("%.100s: got %s of %q: %s; want %s of %q", c.members, e.Code, e.Param, e.Message, c.code, c.param)
		}
	}
	for _, text := range []string{``, `null`, `[]`, `{`, `{"a":1}x`, `{"a":1,}`, "{\"\xff\":1}"} {
		if _, err := parseBatch([]byte(text), endpoints, true); err == nil || apierr.From(err).Code != apierr.BadJSON {
			t.Errorf("%q: %v, want bad_json", text, err)
		}
	}
}

func TestWithModelSetsMissingModels(t *testing.T) {
	line := func(body string) string {
		return `{"custom_id":"` + strings.ReplaceAll(body, `"`, `\"`) + `","method":"POST","url":"/v1/completions","body":` + body + `}`
	}
	for _, c := range []struct{ line, want string }{
		{line(`{"prompt":"a"}`), strings.Replace(line(`{"prompt":"a"}`), `"body":{`, `"body":{"model":"m\"x",`, 1)},
		{line(`{}`), strings.Replace(line(`{}`), `"body":{`, `"body":{"model":"m\"x"`, 1)},
		{line(`{ }`), strings.Replace(line(`{ }`), `"body":{`, `"body":{"model":"m\"x"`, 1)},
		{line(`{"model":"n"}`), line(`{"model":"n"}`)},
		{`{"body":{},"custom_id":"{}","method":"POST","url":"/v1/completions"}`, `{"body":{"model":"m\"x"},"custom_id":"{}","method":"POST","url":"/v1/completions"}`},
		{`{malformed`, `{malformed`},
	} {
		got, err := io.ReadAll(WithModel(strings.NewReader(c.line), `m"x`, 1<<10))
		if err != nil || string(got) != c.want+"\n" {
			t.Errorf("%s becomes %s, %v; want %s", c.line, got, err, c.want)
		}
	}
	got, err := io.ReadAll(WithModel(bytes.NewReader(bytes.Repeat([]byte("y"), 100)), "m", 10))
	if all := scan(t, bytes.NewReader(got), 10); err != nil || len(all) != 1 || !all[0].TooLong {
		t.Errorf("a long line becomes %s, %v", got, err)
	}
}

func TestABatchReplaysOnlyWhereResponsesAreKept(t *testing.T) {
	parse := func(value string, kept bool) (bool, error) {
		b, err := parseBatch([]byte(`{"input_file_id":"f","endpoint":"/v1/completions","completion_window":"1h","replay":`+value+`}`), endpoints, kept)
		return b.replay, err
	}
	for value, want := range map[string]bool{"true": true, "false": false, "null": false} {
		if got, err := parse(value, true); err != nil || got != want {
			t.Errorf("replay %s: got %v, %v", value, got, err)
		}
	}
	for value, kept := range map[string]bool{"true": false, `"true"`: true, "1": true} {
		if _, err := parse(value, kept); err == nil || apierr.From(err).Code != apierr.InvalidRequest {
			t.Errorf("replay %s, kept %v: got %v, want invalid_request", value, kept, err)
		}
	}
}
