package mockvllm_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"basegate/mockvllm"
)

// recording is a request, and the response that a real vLLM sent. An empty response means that the connection was
// refused, or closed without a byte.
type recording struct {
	name, method, path, contentType string
	body                            string
	response                        []byte
}

// recordedServers are the options of the recorded servers, by the name of their recordings.
var recordedServers = map[string]mockvllm.Options{
	"0.8.5":       {Version: "0.8.5", Models: []string{"tiny"}, MaxModelLen: 2048},
	"0.32.0":      {Version: "0.32.0", Models: []string{"tiny"}, MaxModelLen: 2048},
	"0.33.0":      {Version: "0.33.0", Models: []string{"real/tiny"}, MaxModelLen: 4096, ChatTemplate: "chatml"},
	"0.33.0-rust": {Version: "0.33.0", Models: []string{"real/tiny"}, MaxModelLen: 4096, RustFrontend: true, ChatTemplate: "chatml"},
}

// recordedFaults are the faults that cause the recorded failures, by the recording's name. A recording whose name ends
// with "after" is the response to a second request, after the failure of the first.
var recordedFaults = map[string]mockvllm.Fault{
	"enginedead-midstream":     {Kind: "engine_dead", AfterEvents: 6},
	"enginedead-plain":         {Kind: "engine_dead"},
	"enginedead-new-after":     {Kind: "engine_dead"},
	"sigterm-midstream":        {Kind: "sigterm", AfterEvents: 3},
	"sigterm-plain":            {Kind: "sigterm", AfterTokens: 3},
	"sigterm-new-after":        {Kind: "sigterm"},
	"killall-midstream":        {Kind: "killed", AfterEvents: 3},
	"killall-plain":            {Kind: "killed", AfterTokens: 3},
	"killall-new-after":        {Kind: "killed"},
	"stream-echo-logprobs-n16": {Kind: "error_event", Message: "0", AfterEvents: 17},
}

// TestResponsesHaveTheShapeOfRecordedOnes sends the requests that were sent to real servers and compares everything
// but the values: status, headers, members and their order, types, error texts, events, and how the connection ends.
func TestResponsesHaveTheShapeOfRecordedOnes(t *testing.T) {
	for file, options := range recordedServers {
		t.Run(file, func(t *testing.T) {
			healthy := start(t, options)
			recordings := readRecordings(t, file, healthy)
			for _, r := range recordings {
				t.Run(r.name, func(t *testing.T) {
					p := healthy
					fault, ok := recordedFaults[r.name]
					if ok && (options.Version != "0.8.5" || fault.Kind != "error_event") { // 0.8.5 fails there without a fault
						p = start(t, options)
						p.InjectFault(fault)
						if strings.HasSuffix(r.name, "after") {
							exchangeBytes(t, p, r)
						}
					}
					got := exchangeBytes(t, p, r)
					if diff := cmp.Diff(shapeOf(t, r.method, r.response), shapeOf(t, r.method, got)); diff != "" {
						t.Errorf("shape (-recorded +mock):\n%s\nresponse: %.2000s", diff, got)
					}
				})
			}
		})
	}
}

// TestMetricsAreAmongTheRecordedOnes keeps the mock from reporting a metric that the version does not have.
func TestMetricsAreAmongTheRecordedOnes(t *testing.T) {
	for file, options := range recordedServers {
		p := start(t, options)
		complete(t, p, map[string]any{"model": options.Models[0]})
		recorded := strings.Fields(readRecorded(t, file)["metrics.names"])
		for line := range strings.Lines(send(t, p, http.MethodGet, "/metrics", "").body) {
			if name, _, ok := strings.Cut(line, "{"); ok && !strings.HasPrefix(line, "#") && !slices.Contains(recorded, name) {
				t.Errorf("%s: got the metric %s, which the recorded server does not have", file, name)
			}
		}
	}
}

// readRecorded returns the files of a version's archive.
func readRecorded(t *testing.T, version string) map[string]string {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/recorded-" + version + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, file := range archive.Files {
		files[file.Name] = string(file.Data)
	}
	return files
}

func readRecordings(t *testing.T, version string, p *mockvllm.Process) []recording {
	t.Helper()
	files := readRecorded(t, version)
	var recordings []recording
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if name, ok := strings.CutSuffix(file, ".request"); ok {
			r := parseRequest(t, name, files[file], p)
			r.response = []byte(files[name+".http"])
			recordings = append(recordings, r)
		}
	}
	if len(recordings) < 50 {
		t.Fatalf("got %d recordings, want more than 50", len(recordings))
	}
	return recordings
}

// repeated matches the abbreviation of a long prompt in a recorded request.
var repeated = regexp.MustCompile(`"<(.*) repeated (\d+) times>"`)

func parseRequest(t *testing.T, name, text string, p *mockvllm.Process) recording {
	t.Helper()
	head, body, _ := strings.Cut(text, "\n")
	fields := append(strings.Fields(head), "application/json")
	body = strings.TrimSuffix(body, "\n")
	body = repeated.ReplaceAllStringFunc(body, func(abbreviated string) string {
		parts := repeated.FindStringSubmatch(abbreviated)
		count, err := strconv.Atoi(parts[2])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := strconv.Atoi(parts[1]); err == nil {
			return "[" + strings.TrimSuffix(strings.Repeat(parts[1]+",", count), ",") + "]"
		}
		return strconv.Quote(strings.Repeat(parts[1], count))
	})
	switch name {
	case "plain-stop-eos": // the recorded bias is for the end-of-text token of another tokenizer
		body = strings.Replace(body, `{"1": 100}`, fmt.Sprintf(`{"%d": 100}`, endOfText(t, p)), 1)
	case "error-invalid-utf8":
		body = strings.Replace(body, `\xff`, "\xff", 1)
	}
	return recording{name: name, method: fields[0], path: fields[1], contentType: fields[2], body: body}
}

// endOfText returns the id of the mock's end-of-text token.
func endOfText(t *testing.T, p *mockvllm.Process) int {
	t.Helper()
	a := send(t, p, http.MethodPost, "/tokenize", `{"prompt":"<|end_of_text|>","add_special_tokens":false}`)
	var tokenized struct{ Tokens []int }
	if err := json.Unmarshal([]byte(a.body), &tokenized); err != nil || len(tokenized.Tokens) != 1 {
		t.Fatalf("/tokenize: got %s, error %v", a.body, err)
	}
	return tokenized.Tokens[0]
}

// exchangeBytes sends a request and returns all bytes that come back until the connection ends.
func exchangeBytes(t *testing.T, p *mockvllm.Process, r recording) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return nil
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		r.method, r.path, r.contentType, len(r.body), r.body)
	raw, _ := io.ReadAll(conn) // a reset ends the response like a close
	return raw
}

// shape is what has to agree between two responses to the same request.
type shape struct {
	Status  string
	Headers map[string]string
	Body    string           // a plain body
	Choices map[int][]string // a stream's events by index, consecutive equal shapes once
	Tail    []string         // a stream's events without choices, and [DONE]
	End     string
}

func shapeOf(t *testing.T, method string, raw []byte) shape {
	t.Helper()
	if len(raw) == 0 {
		return shape{End: "no response"}
	}
	response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	s := shape{Status: response.Status, Headers: make(map[string]string), End: "complete"}
	for _, name := range []string{"Content-Type", "Server", "Vary", "Allow", "Location", "Transfer-Encoding"} {
		s.Headers[name] = response.Header.Get(name)
	}
	s.Headers["Content-Length"] = fmt.Sprint(response.ContentLength >= 0)
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.End = "cut: " + err.Error()
	}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		s.addEvents(t, string(body))
		return s
	}
	s.Body = string(body)
	if json.Valid(body) {
		s.Body = jsonShape(t, body)
	}
	return s
}

func (s *shape) addEvents(t *testing.T, body string) {
	t.Helper()
	s.Choices = make(map[int][]string)
	for _, event := range strings.SplitAfter(body, "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if event == "" {
			continue
		}
		if !ok || !strings.HasSuffix(data, "\n\n") {
			t.Fatalf("malformed event %q", event)
		}
		var c struct{ Choices []struct{ Index int } }
		if json.Unmarshal([]byte(data), &c) != nil || len(c.Choices) == 0 {
			s.Tail = append(s.Tail, eventShape(t, data))
			continue
		}
		index, form := c.Choices[0].Index, eventShape(t, data)
		if had := s.Choices[index]; len(had) == 0 || had[len(had)-1] != form {
			s.Choices[index] = append(had, form)
		}
	}
	if len(s.Tail) > 0 && strings.Contains(s.Tail[0], "error") {
		s.Choices = map[int][]string{0: s.Choices[0]} // how many outputs had begun is a matter of time
	}
	for index, forms := range s.Choices {
		// An output may end with its first token, or later.
		if last := forms[max(0, len(forms)-1):]; len(forms) == 2 && strings.Contains(last[0], "stop") {
			s.Choices[index] = last
		}
	}
}

func eventShape(t *testing.T, data string) string {
	t.Helper()
	if !json.Valid([]byte(data)) {
		return strings.TrimSpace(data)
	}
	return jsonShape(t, []byte(data))
}

// literalMembers are compared by value, with numbers normalised. Of other strings and numbers only the type counts.
var literalMembers = []string{"message", "type", "param", "object", "finish_reason", "stop_reason", "detail", "owned_by", "version"}

var digits = regexp.MustCompile(`cmpl-[0-9a-f]+|\d+`)

// jsonShape describes JSON without its values. Equal neighbours in a list count once.
func jsonShape(t *testing.T, data []byte) string {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	form, err := valueShape(decoder, "")
	if err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return form
}

func valueShape(decoder *json.Decoder, member string) (string, error) {
	token, err := decoder.Token()
	if err != nil {
		return "", err
	}
	switch v := token.(type) {
	case json.Delim:
		return containerShape(decoder, member, v)
	case string:
		if slices.Contains(literalMembers, member) {
			return strconv.Quote(digits.ReplaceAllString(v, "N")), nil
		}
		return "string", nil
	case json.Number:
		if strings.ContainsAny(v.String(), ".e") {
			return "float", nil
		}
		return "int", nil
	}
	return fmt.Sprint(token), nil
}

func containerShape(decoder *json.Decoder, member string, open json.Delim) (string, error) {
	var parts []string
	for decoder.More() {
		name, label := member, ""
		if open == '{' {
			token, err := decoder.Token()
			if err != nil {
				return "", err
			}
			name = token.(string)
			label = name + ":"
			if member == "top_logprobs" || member == "prompt_logprobs" { // the name is a token
				label, name = "*:", ""
			}
		}
		form, err := valueShape(decoder, name)
		if err != nil {
			return "", err
		}
		if part := label + form; len(parts) == 0 || parts[len(parts)-1] != part {
			parts = append(parts, part)
		}
	}
	_, err := decoder.Token()
	return string(open) + strings.Join(parts, ","), err
}
