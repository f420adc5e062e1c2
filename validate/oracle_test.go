package validate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	apierr "basegate/errors"
	"basegate/validate"
)

// rawMember is a member of a JSON object: the bytes of its name and of its value.
type rawMember struct{ name, value string }

func (m rawMember) decodedName() string {
	var s string
	if err := json.Unmarshal([]byte(m.name), &s); err != nil {
		return "not a string: " + m.name
	}
	return s
}

// text returns the unescaped value of a member that is a string.
func (m rawMember) text() string { return rawMember{name: m.value}.decodedName() }

// parseMembers parses one object, and nothing after it, with encoding/json, a parser that shares nothing with the one
// under test. It returns an error for a duplicate name at any depth.
func parseMembers(body []byte) ([]rawMember, error) {
	if !json.Valid(body) || !utf8.Valid(body) {
		return nil, errors.New("not valid JSON")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if opening, err := d.Token(); err != nil || opening != json.Delim('{') {
		return nil, fmt.Errorf("not an object: %v, %w", opening, err)
	}
	var all []rawMember
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
			return nil, fmt.Errorf("duplicate name %s", raw)
		}
		seen[name.(string)] = true
		if err := checkDuplicates(value); err != nil {
			return nil, err
		}
		all = append(all, rawMember{raw, string(value)})
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("trailing data")
	}
	return all, nil
}

// checkDuplicates returns an error if a value contains a duplicate name.
func checkDuplicates(value json.RawMessage) error {
	switch value[0] {
	case '{':
		_, err := parseMembers(value)
		return err
	case '[':
		var elements []json.RawMessage
		if err := json.Unmarshal(value, &elements); err != nil {
			return err
		}
		for _, e := range elements {
			if err := checkDuplicates(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// values are the values of a request.
type values struct {
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

// oracle parses a body slowly and by other means than the code under test. It returns an error if the body violates the
// contract, except for the rules that outsideOracle lists.
func oracle(body []byte) (values, error) {
	m := values{MaxTokens: 16, N: 1, Logprobs: -1, Prompt: -1}
	all, err := parseMembers(body)
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
		if err := m.set(name, x.value); err != nil {
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

func (m *values) set(name, value string) error {
	read := func(to any) error {
		if value == "null" {
			return errors.New("null")
		}
		d := json.NewDecoder(strings.NewReader(value))
		d.DisallowUnknownFields()
		return d.Decode(to)
	}
	integer := func(lo, hi int64) (int64, error) {
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
		err = m.setPrompt(value)
	case "max_tokens":
		m.MaxTokens, err = integer(1, 1<<63-1)
	case "temperature":
		err = number(func(v float64) bool { return 0 <= v && v <= 2 })
	case "top_p":
		err = number(func(v float64) bool { return 0 < v && v <= 1 })
	case "top_k":
		v, err = integer(-1, 1<<63-1)
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
		_, err = integer(-1<<63, 1<<63-1)
	case "n":
		m.N, err = integer(1, 16)
	case "best_of":
		m.BestOf, err = integer(1, 16)
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
		v, err = integer(0, 20)
		m.Logprobs = int(v)
	case "prompt_logprobs":
		v, err = integer(0, 20)
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
		for name, include := range options {
			if name != "include_usage" {
				err = errors.New("unknown option")
			}
			m.Usage = include != nil && *include
		}
	case "logit_bias":
		var bias map[string]*float64
		if err = read(&bias); err != nil {
			return err
		}
		for id, b := range bias {
			if v, notID := strconv.ParseInt(id, 10, 64); notID != nil || v < 0 || strconv.FormatInt(v, 10) != id {
				err = errors.New("not a token id")
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

func (m *values) setPrompt(value string) error {
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
				return fmt.Errorf("%s is not a token id", id)
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

// valuesOf returns the values of a parsed request.
func valuesOf(r *validate.Request) values {
	return values{
		Model: r.Model, MaxTokens: r.MaxTokens, N: r.N, BestOf: r.BestOf, Logprobs: r.Logprobs, Prompt: r.PromptLogprobs,
		Echo: r.Echo, Stream: r.Stream, Usage: r.IncludeUsage, User: r.User, RawUser: string(r.RawUser()), HasUser: r.HasUser,
		Kind: r.Kind, Prompts: r.Prompts, Tokens: r.PromptTokens, Longest: r.LongestPrompt(), Texts: texts(r),
	}
}

// outsideOracle reports whether an error is due to a rule that the oracle does not check: lone surrogates, conflicting
// fields, token ids of more than 18 digits.
func outsideOracle(e *apierr.Error, m values) bool {
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

// anyCheckpoint replaces the JSON of the checkpoint's name, which can be written in several ways.
const anyCheckpoint = "the checkpoint"

// wantMembers returns the members that a backend must receive for those that the client sent.
func wantMembers(all []rawMember, r *validate.Request, e validate.Edits) []rawMember {
	emulate := e.BestOf == validate.EmulateBestOf
	edited := []struct {
		field, value string
		condition    bool
	}{
		{"model", anyCheckpoint, true},
		{"max_tokens", strconv.FormatInt(e.MaxTokens, 10), e.MaxTokens > 0},
		{"n", strconv.FormatInt(r.BestOf, 10), emulate},
		{"logprobs", "0", emulate && r.Logprobs == validate.Absent},
		{"stream_options", `{"include_usage":true}`, r.Stream && !r.IncludeUsage},
		{"return_tokens_as_token_ids", "true", e.TokenIDs},
		{"return_token_ids", "true", e.TokenIDs && !r.Echo},
	}
	var want []rawMember
	done := map[string]bool{}
	for _, m := range all {
		name := m.decodedName()
		for _, c := range edited {
			if c.field != name || !c.condition {
				continue
			}
			done[name] = true
			if name == "stream_options" && m.value != "null" {
				m.value = withUsage(m.value)
			} else {
				m.value = c.value
			}
		}
		if m.value == "null" || (name == "best_of" && e.BestOf != validate.KeepBestOf) {
			continue
		}
		want = append(want, m)
	}
	for _, c := range edited {
		if c.condition && !done[c.field] {
			want = append(want, rawMember{strconv.Quote(c.field), c.value})
		}
	}
	return want
}

// withUsage returns the JSON of stream_options with include_usage set to true.
func withUsage(options string) string {
	inside, err := parseMembers([]byte(options))
	if err != nil || len(inside) == 0 {
		return `{"include_usage":true` + options[1:]
	}
	old := inside[0].value
	at := strings.LastIndex(options, old)
	return options[:at] + "true" + options[at+len(old):]
}
