package validate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	apierr "basegate/errors"
	"basegate/validate"
)

// one is a member of an object: the bytes of its name and of its value, as they stand in the body.
type one struct{ name, value string }

func (m one) decodedName() string {
	var s string
	if err := json.Unmarshal([]byte(m.name), &s); err != nil {
		return "not a name: " + m.name
	}
	return s
}

// text is the value of a string.
func (m one) text() string { return one{name: m.value}.decodedName() }

// members reads one object, and nothing behind it, by encoding/json: a parser that shares nothing with the one under
// test. It fails at a name that stands twice, at whatever depth.
func members(body []byte) ([]one, error) {
	if !json.Valid(body) || !utf8.Valid(body) {
		return nil, errors.New("not valid JSON")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if opening, err := d.Token(); err != nil || opening != json.Delim('{') {
		return nil, fmt.Errorf("no object: %v, %w", opening, err)
	}
	var all []one
	seen := map[string]bool{}
	for d.More() {
		before := d.InputOffset()
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		raw := strings.TrimLeft(string(body[before:d.InputOffset()]), " \t\r\n,")
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		if seen[name.(string)] {
			return nil, fmt.Errorf("%s stands twice", raw)
		}
		seen[name.(string)] = true
		if err := unambiguous(value); err != nil {
			return nil, err
		}
		all = append(all, one{raw, string(value)})
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is more")
	}
	return all, nil
}

// unambiguous looks for repeated names in a value.
func unambiguous(value json.RawMessage) error {
	switch value[0] {
	case '{':
		_, err := members(value)
		return err
	case '[':
		var elements []json.RawMessage
		if err := json.Unmarshal(value, &elements); err != nil {
			return err
		}
		for _, e := range elements {
			if err := unambiguous(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// meant is what a body says, read the slow way.
type meant struct {
	Model                string
	MaxTokens, N, BestOf int64
	Logprobs, Prompt     int
	Echo, Stream, Usage  bool
	User, RawUser        string
	HasUser              bool
	Kind                 validate.PromptKind
	Prompts              int
	Tokens, Longest      int64
	Texts                []string
}

// meaning is the oracle: it fails where the body breaks the contract.
func meaning(body []byte) (meant, error) {
	m := meant{MaxTokens: 16, N: 1, Logprobs: -1, Prompt: -1}
	all, err := members(body)
	if err != nil {
		return m, err
	}
	required := 0
	for _, x := range all {
		name := x.decodedName()
		if name == "model" || name == "prompt" {
			required++
		} else if x.value == "null" && isField(name) {
			continue
		}
		if err := m.take(name, x.value); err != nil {
			return m, fmt.Errorf("%s: %w", name, err)
		}
	}
	if required != 2 {
		return m, errors.New("model or prompt is missing")
	}
	return m, nil
}

func isField(name string) bool {
	for _, row := range fieldTable {
		if row.field == name {
			return true
		}
	}
	return false
}

func (m *meant) take(name, value string) error {
	read := func(to any) error {
		if value == "null" {
			return errors.New("null")
		}
		d := json.NewDecoder(strings.NewReader(value))
		d.DisallowUnknownFields()
		return d.Decode(to)
	}
	whole := func(lo, hi int64) (int64, error) {
		v, err := strconv.ParseInt(value, 10, 64)
		if err == nil && (v < lo || v > hi) {
			err = errors.New("out of range")
		}
		return v, err
	}
	number := func(ok func(float64) bool) error {
		v, err := strconv.ParseFloat(value, 64)
		if err == nil && !ok(v) {
			err = errors.New("out of range")
		}
		return err
	}
	var err error
	var v int64
	switch name {
	case "model":
		err = read(&m.Model)
	case "prompt":
		err = m.takePrompt(value)
	case "max_tokens":
		m.MaxTokens, err = whole(1, 1<<63-1)
	case "temperature":
		err = number(func(v float64) bool { return 0 <= v && v <= 2 })
	case "top_p":
		err = number(func(v float64) bool { return 0 < v && v <= 1 })
	case "top_k":
		v, err = whole(-1, 1<<63-1)
		if v == 0 {
			err = errors.New("out of range")
		}
	case "min_p":
		err = number(func(v float64) bool { return 0 <= v && v <= 1 })
	case "presence_penalty", "frequency_penalty":
		err = number(func(v float64) bool { return -2 <= v && v <= 2 })
	case "repetition_penalty":
		err = number(func(v float64) bool { return 0 < v && v <= 2 })
	case "seed":
		_, err = whole(-1<<63, 1<<63-1)
	case "n":
		m.N, err = whole(1, 16)
	case "best_of":
		m.BestOf, err = whole(1, 16)
	case "stop":
		var stops []string
		if err = read(&stops); err != nil {
			stops = []string{""}
			err = read(&stops[0])
		}
		if len(stops) < 1 || len(stops) > 4 || slices.Contains(stops, "") {
			err = errors.New("out of range")
		}
	case "logprobs":
		v, err = whole(0, 20)
		m.Logprobs = int(v)
	case "prompt_logprobs":
		v, err = whole(0, 20)
		m.Prompt = int(v)
	case "echo":
		err = read(&m.Echo)
	case "stream":
		err = read(&m.Stream)
	case "stream_options":
		var options map[string]*bool
		if err = read(&options); err != nil {
			return err
		}
		for name, asked := range options {
			if name != "include_usage" {
				err = errors.New("unknown option")
			}
			m.Usage = asked != nil && *asked
		}
	case "logit_bias":
		var bias map[string]*float64
		if err = read(&bias); err != nil {
			return err
		}
		for id, b := range bias {
			if v, notID := strconv.ParseInt(id, 10, 64); notID != nil || v < 0 || strconv.FormatInt(v, 10) != id {
				err = errors.New("no token id")
			}
			if b == nil || *b < -100 || *b > 100 {
				err = errors.New("out of range")
			}
		}
	case "user":
		err = read(&m.User)
		m.HasUser, m.RawUser = true, value
		if len(m.User) > 512 {
			err = errors.New("too long")
		}
	default:
		err = errors.New("unknown")
	}
	return err
}

func (m *meant) takePrompt(value string) error {
	var text *string
	var texts []*string
	var ids []json.Number
	var batch [][]json.Number
	if json.Unmarshal([]byte(value), &text) == nil && text != nil {
		m.Kind, m.Prompts, m.Texts = validate.Text, 1, []string{*text}
		return nil
	}
	if json.Unmarshal([]byte(value), &texts) == nil && len(texts) > 0 {
		m.Kind, m.Prompts = validate.Text, len(texts)
		for _, s := range texts {
			if s == nil {
				return errors.New("null")
			}
			m.Texts = append(m.Texts, *s)
		}
		return nil
	}
	m.Kind = validate.Tokens
	if json.Unmarshal([]byte(value), &ids) == nil {
		batch = [][]json.Number{ids}
	} else if err := json.Unmarshal([]byte(value), &batch); err != nil {
		return err
	}
	m.Prompts = len(batch)
	for _, ids := range batch {
		for _, id := range ids {
			if v, err := strconv.ParseInt(id.String(), 10, 64); err != nil || v < 0 || id.String()[0] == '-' {
				return fmt.Errorf("%s is no token id", id)
			}
		}
		if len(ids) == 0 {
			return errors.New("an empty array")
		}
		m.Tokens += int64(len(ids))
		m.Longest = max(m.Longest, int64(len(ids)))
	}
	if m.Prompts == 0 {
		return errors.New("an empty array")
	}
	return nil
}

// of is the same of a Request.
func of(r *validate.Request) meant {
	return meant{
		Model: r.Model, MaxTokens: r.MaxTokens, N: r.N, BestOf: r.BestOf, Logprobs: r.Logprobs, Prompt: r.PromptLogprobs,
		Echo: r.Echo, Stream: r.Stream, Usage: r.IncludeUsage, User: r.User, RawUser: string(r.RawUser()), HasUser: r.HasUser,
		Kind: r.Kind, Prompts: r.Prompts, Tokens: r.PromptTokens, Longest: r.LongestPrompt(), Texts: texts(r),
	}
}

// seeds are bodies of every sort: those of the tables, and some that are rich in what matters.
func seeds(f *testing.F) []string {
	f.Helper()
	all := []string{
		everything, right, string(filled(1 << 10)),
		`{"mod\u0065l":"m","prompt":["a","\ud83d\ude00\\\""],"us\u0065r":"x","stream":true,"stream_options":{ "include\u005fusage" : null } }`,
		` { "n" : null , "best_of":4, "prompt":[[1,2],[3]] ,"model":"m" , "logprobs":null,"user": null } `,
		`{"user":null,"n":null,"model":"m","max_tokens":null,"prompt":[0,1],"stop":["a","b"],"logit_bias":{"1":1e2,"2":-0.0},"seed":-9223372036854775808}`,
		`{"model":"m","prompt":"{\"model\":null,","stream":true,"stream_options":null,"echo":true,"logprobs":20,"user":"\"user\":null"}`,
		`{"model":"m","prompt":"a","model":"n"}`, `{"x":{"a":1,"\u0061":2}}`, "\xef\xbb\xbf{}", "{\"model\":\"\xff\"}", `{"model":"\ud800"}`, `{"n":1e0}`,
	}
	for _, row := range fieldTable {
		for _, value := range slices.Concat(row.accepted, row.refused) {
			all = append(all, with(row.field, value))
		}
	}
	data, err := os.ReadFile("testdata/judgement.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range txtar.Parse(data).Files {
		if strings.HasSuffix(file.Name, ".json") {
			all = append(all, string(file.Data))
		}
	}
	return all
}

func FuzzCompletion(f *testing.F) {
	for _, body := range seeds(f) {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		kept := bytes.Clone(body)
		r, err := validate.Completion(body, limit)
		if !bytes.Equal(kept, body) {
			t.Fatal("the body was written to")
		}
		want, wrong := meaning(body)
		if err != nil {
			e := apierr.From(err)
			if e.Code != apierr.InvalidRequest && e.Code != apierr.BadJSON {
				t.Fatalf("%v: %v", e.Code, err)
			}
			if e.Message == "" || (e.Code == apierr.BadJSON && (e.Extras[0].Value.(int64) < 0 || e.Extras[0].Value.(int64) > int64(len(body)))) {
				t.Fatalf("%s", verdict(err))
			}
			if wrong == nil && !strictOnly(e, want) {
				t.Fatalf("refused without a reason: %s", verdict(err))
			}
			return
		}
		if wrong != nil {
			t.Fatalf("accepted although %v", wrong)
		}
		if diff := cmp.Diff(want, of(r)); diff != "" {
			t.Fatalf("(-meant +read):\n%s", diff)
		}
		if total := int64(len(strings.Join(want.Texts, ""))); total > r.PromptBytes() {
			t.Fatalf("%d bytes of text, but PromptBytes is %d", total, r.PromptBytes())
		}
	})
}

// strictOnly tells whether an error is about what the oracle does not judge: lone surrogates, pairs that contradict
// each other, token ids past any vocabulary.
func strictOnly(e *apierr.Error, m meant) bool {
	switch {
	case e.Code == apierr.BadJSON:
		return strings.Contains(e.Message, "surrogate")
	case e.Param == "best_of":
		return m.BestOf < m.N || (m.Stream && m.BestOf > m.N)
	case e.Param == "prompt_logprobs":
		return m.Stream && m.Prompt >= 0
	case e.Param == "stream_options":
		return !m.Stream
	case e.Param == "prompt", e.Param == "logit_bias":
		return strings.Contains(e.Message, "token id") && strings.ContainsAny(e.Message, "123456789")
	}
	return false
}

func FuzzUpstream(f *testing.F) {
	for i, body := range seeds(f) {
		f.Add([]byte(body), "meta-llama/Llama-3.1-8B", int64(i%3*100), uint8(i))
	}
	f.Fuzz(func(t *testing.T, body []byte, model string, maxTokens int64, bestOf uint8) {
		r, err := validate.Completion(body, limit)
		if err != nil || !utf8.ValidString(model) {
			return
		}
		e := validate.Edits{Model: model, MaxTokens: max(0, maxTokens), BestOf: validate.BestOf(bestOf % 3), TokenIDs: bestOf > 127}
		if r.BestOf == 0 && e.BestOf == validate.EmulateBestOf {
			e.BestOf = validate.KeepBestOf // there is nothing to emulate
		}
		out := r.Upstream(e)
		readsAlike(t, out)
		got, err := members(out.Append(nil))
		if err != nil {
			t.Fatalf("%q: %v", out.Append(nil), err)
		}
		before, err := members(body)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range got {
			if m.decodedName() == "model" && m.text() == model {
				got[i].value = asGiven
			}
		}
		if diff := cmp.Diff(expected(before, r, e), got, cmp.AllowUnexported(one{})); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

// asGiven stands for the name of the checkpoint, which JSON can write in several ways.
const asGiven = "the checkpoint"

// expected is what the contract leaves of the members, and what it adds behind them.
func expected(all []one, r *validate.Request, e validate.Edits) []one {
	emulate := e.BestOf == validate.EmulateBestOf
	changed := []struct {
		field, value string
		when         bool
	}{
		{"model", asGiven, true},
		{"max_tokens", strconv.FormatInt(e.MaxTokens, 10), e.MaxTokens > 0},
		{"n", strconv.FormatInt(r.BestOf, 10), emulate},
		{"logprobs", "0", emulate && r.Logprobs == validate.Absent},
		{"stream_options", `{"include_usage":true}`, r.Stream && !r.IncludeUsage},
		{"return_tokens_as_token_ids", "true", e.TokenIDs},
		{"return_token_ids", "true", e.TokenIDs && !r.Echo},
	}
	var left []one
	done := map[string]bool{}
	for _, m := range all {
		name := m.decodedName()
		for _, c := range changed {
			if c.field != name || !c.when {
				continue
			}
			done[name] = true
			if name == "stream_options" && m.value != "null" {
				m.value = asking(m.value)
			} else {
				m.value = c.value
			}
		}
		if m.value == "null" || (name == "best_of" && e.BestOf != validate.KeepBestOf) {
			continue
		}
		left = append(left, m)
	}
	for _, c := range changed {
		if c.when && !done[c.field] {
			left = append(left, one{strconv.Quote(c.field), c.value})
		}
	}
	return left
}

// asking is an object of stream_options that asks for usage: the one member's value changed, or the member put in.
func asking(options string) string {
	inside, err := members([]byte(options))
	if err != nil || len(inside) == 0 {
		return `{"include_usage":true` + options[1:]
	}
	old := inside[0].value
	at := strings.LastIndex(options, old)
	return options[:at] + "true" + options[at+len(old):]
}
