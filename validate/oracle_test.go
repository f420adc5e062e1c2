package validate_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp/cmpopts"

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
	MinTokens, Truncate  int64
	NoSpecial            bool
	CacheKey             string

	StreamInterval int64  // not of the request
	Side           string // not of the request
}

// ofRequest ignores the values that a request does not keep.
var ofRequest = cmpopts.IgnoreFields(values{}, "StreamInterval", "Side")

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
		err = cmp.Or(err, checkStrings(stops, 4))
	case "bad_words":
		var words []string
		err = cmp.Or(read(&words), checkStrings(words, 128))
	case "min_tokens":
		m.MinTokens, err = integer(0, 1<<63-1)
	case "truncate_prompt_tokens":
		m.Truncate, err = integer(-1, 1<<63-1)
		if m.Truncate == 0 {
			err = errors.New("out of range")
		}
	case "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "return_tokens_as_token_ids", "return_token_ids", "return_weight_versions":
		var any bool
		err = read(&any)
	case "add_special_tokens":
		var add bool
		err = read(&add)
		m.NoSpecial = !add
	case "stop_token_ids":
		err = checkTokenIDs(value, 128)
	case "allowed_token_ids":
		err = checkTokenIDs(value, 262144)
	case "logprob_token_ids":
		var ids []json.Number
		if err = cmp.Or(checkTokenIDs(value, 128), read(&ids)); err == nil {
			slices.Sort(ids)
			if len(slices.Compact(ids)) < len(ids) {
				err = errors.New("twice")
			}
		}
	case "cache_salt":
		var salt string
		err = read(&salt)
		if n := utf8.RuneCountInString(salt); n < 1 || n > 128 || strings.ContainsAny(salt, "@/\\\x00") {
			err = errors.New("out of range")
		}
	case "prompt_cache_key":
		err = read(&m.CacheKey)
		if len(m.CacheKey) > 512 {
			err = errors.New("too long")
		}
	case "stream_interval":
		m.StreamInterval, err = integer(1, 1024)
	case "truncation_side":
		err = read(&m.Side)
		if m.Side != "left" && m.Side != "right" {
			err = errors.New("unknown")
		}
	case "repetition_detection":
		err = checkRepetition(value)
	case "vllm_xargs":
		err = checkXArgs(value)
	case "response_format":
		err = checkResponseFormat(value)
	case "structured_outputs":
		err = checkStructuredOutputs(value)
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
		for name, value := range options {
			if value != nil && name != "include_usage" && name != "continuous_usage_stats" {
				err = errors.New("unknown option")
			}
		}
		include, continuous := options["include_usage"], options["continuous_usage_stats"]
		m.Usage = include != nil && *include
		if continuous != nil && (include == nil || (*continuous && !*include)) {
			err = errors.New("continuous_usage_stats without include_usage")
		}
	case "logit_bias":
		var bias map[string]*float64
		if err = read(&bias); err != nil {
			return err
		}
		for id, b := range bias {
			if v, notID := strconv.ParseInt(id, 10, 64); notID != nil || v < 0 || v > 1<<31-1 || strconv.FormatInt(v, 10) != id {
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
			if v, err := strconv.ParseInt(id.String(), 10, 64); err != nil || v < 0 || v > 1<<31-1 || id.String()[0] == '-' {
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

func checkStrings(all []string, most int) error {
	if len(all) < 1 || len(all) > most || slices.Contains(all, "") {
		return errors.New("out of range")
	}
	return nil
}

func checkTokenIDs(value string, most int) error {
	var ids []*uint32
	if err := json.Unmarshal([]byte(value), &ids); err != nil {
		return err
	}
	if len(ids) < 1 || len(ids) > most || slices.ContainsFunc(ids, func(id *uint32) bool { return id == nil || *id > 1<<31-1 }) {
		return errors.New("out of range")
	}
	return nil
}

// object returns the members of an object that are not null, and an error if it has others than those allowed.
func object(value string, allowed ...string) (map[string]any, error) {
	var all map[string]any
	if err := json.Unmarshal([]byte(value), &all); err != nil || all == nil {
		return nil, fmt.Errorf("not an object: %w", err)
	}
	for name, v := range all {
		switch {
		case v == nil:
			delete(all, name)
		case !slices.Contains(allowed, name):
			return nil, errors.New("unknown member")
		}
	}
	return all, nil
}

func checkResponseFormat(value string) error {
	format, err := object(value, "type", "json_schema")
	if err != nil {
		return err
	}
	schema, hasSchema := format["json_schema"]
	if (format["type"] == "json_schema") != hasSchema {
		return errors.New("json_schema goes with type json_schema")
	}
	if !hasSchema {
		if format["type"] != "text" && format["type"] != "json_object" {
			return errors.New("unknown type")
		}
		return nil
	}
	encoded, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	parts, err := object(string(encoded), "name", "schema", "strict", "description")
	if err != nil {
		return err
	}
	name, named := parts["name"].(string)
	_, hasSchema = parts["schema"].(map[string]any)
	_, strict := parts["strict"].(bool)
	_, description := parts["description"].(string)
	if !named || name == "" || !hasSchema || (!strict && parts["strict"] != nil) || (!description && parts["description"] != nil) {
		return errors.New("invalid json_schema")
	}
	return nil
}

func checkStructuredOutputs(value string) error {
	all, err := object(value, "json", "regex", "choice", "grammar", "json_object", "disable_any_whitespace")
	if err != nil {
		return err
	}
	if whitespace, present := all["disable_any_whitespace"]; present {
		if _, ok := whitespace.(bool); !ok {
			return errors.New("disable_any_whitespace is not a boolean")
		}
		delete(all, "disable_any_whitespace")
	}
	if len(all) != 1 {
		return errors.New("not exactly one constraint")
	}
	for name, constraint := range all {
		switch v := constraint.(type) {
		case string:
			if v == "" || name == "choice" || name == "json_object" {
				return errors.New("invalid string")
			}
		case map[string]any:
			if name != "json" {
				return errors.New("invalid object")
			}
		case []any:
			if name != "choice" || len(v) == 0 || slices.ContainsFunc(v, func(c any) bool { s, ok := c.(string); return !ok || s == "" }) {
				return errors.New("invalid array")
			}
		default:
			if name != "json_object" || v != true {
				return errors.New("invalid value")
			}
		}
	}
	return nil
}

func checkRepetition(value string) error {
	all, err := object(value, "max_pattern_size", "min_pattern_size", "min_count")
	if err != nil {
		return err
	}
	sizes := map[string]float64{}
	for name, v := range all {
		n, ok := v.(float64)
		if !ok || n < 0 || n > 1024 || regexp.MustCompile(`"`+name+`"\s*:\s*-?\d+[.eE]`).MatchString(value) {
			return errors.New("not an integer from 0 to 1024")
		}
		sizes[name] = n
	}
	if sizes["min_count"] < 2 || sizes["min_pattern_size"] > sizes["max_pattern_size"] {
		return errors.New("out of range")
	}
	return nil
}

func checkXArgs(value string) error {
	all, err := object(value, "alpha", "beta")
	if err != nil {
		return err
	}
	for _, v := range all {
		if list, ok := v.([]any); ok {
			for _, element := range list {
				if _, nested := element.([]any); nested || element == nil {
					return errors.New("not a scalar")
				}
				if _, nested := element.(map[string]any); nested {
					return errors.New("not a scalar")
				}
			}
		} else if _, nested := v.(map[string]any); nested {
			return errors.New("not a scalar")
		}
	}
	return nil
}

// valuesOf returns the values of a parsed request.
func valuesOf(r *validate.Request) values {
	return values{
		Model: r.Model, MaxTokens: r.MaxTokens, N: r.N, BestOf: r.BestOf, Logprobs: r.Logprobs, Prompt: r.PromptLogprobs,
		Echo: r.Echo, Stream: r.Stream, Usage: r.IncludeUsage, User: r.User, RawUser: string(r.RawUser()), HasUser: r.HasUser,
		Kind: r.Kind, Prompts: r.Prompts, Tokens: r.PromptTokens, Longest: r.LongestPrompt, Texts: texts(r),
		MinTokens: r.MinTokens, Truncate: r.Truncate, NoSpecial: r.NoSpecialTokens, CacheKey: r.PromptCacheKey,
	}
}

// outsideOracle reports whether an error is due to a rule that the oracle does not check: lone surrogates, conflicting
// fields.
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
	case e.Param == "prompt": // the oracle takes a number in quotes for a number
		return strings.Contains(e.Message, "the string")
	case e.Param == "stream_interval":
		return !m.Stream
	case e.Param == "logprob_token_ids":
		return m.Logprobs == validate.Absent
	case e.Param == "truncation_side":
		return m.Truncate == 0
	case e.Param == "min_tokens":
		return m.MinTokens > m.MaxTokens
	case e.Param == "return_token_ids", e.Param == "structured_outputs":
		return strings.Contains(e.Message, "echo") || strings.Contains(e.Message, "exclude")
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
		{"stream_options", `{"include_usage":true}`, r.Stream && (!r.IncludeUsage || nullOption(all))},
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
		if e.Guided {
			m = guided(m)
		}
		if strings.Contains(m.value, "null") {
			m.value = withoutNulls(m)
		}
		if m.value == "null" || name == "prompt_cache_key" || (name == "best_of" && e.BestOf != validate.KeepBestOf) {
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

// guided returns the member that a version before 0.11 takes in place of structured output.
func guided(m rawMember) rawMember {
	inside, err := parseMembers([]byte(m.value))
	if err != nil {
		return m
	}
	switch m.decodedName() {
	case "structured_outputs":
		for _, o := range inside {
			switch name := o.decodedName(); {
			case o.value == "null", name == "disable_any_whitespace":
			case name == "json_object":
				return rawMember{`"response_format"`, `{"type":"json_object"}`}
			default:
				return rawMember{strconv.Quote("guided_" + name), o.value}
			}
		}
	case "response_format":
		for _, o := range inside {
			if o.decodedName() != "json_schema" || o.value == "null" {
				continue
			}
			parts, _ := parseMembers([]byte(o.value))
			for _, part := range parts {
				if part.decodedName() == "schema" {
					return rawMember{`"guided_json"`, part.value}
				}
			}
		}
	}
	return m
}

// withoutNulls returns the value of a member without the null members of its object, and of that in json_schema.
func withoutNulls(m rawMember) string {
	inside, err := parseMembers([]byte(m.value))
	if err != nil || !slices.Contains([]string{"response_format", "json_schema", "structured_outputs", "repetition_detection", "vllm_xargs"}, m.decodedName()) {
		return m.value
	}
	value, kept := m.value, false
	for i, o := range inside {
		at := strings.Index(value, o.name)
		end := at + strings.Index(value[at:], o.value) + len(o.value)
		switch rest := strings.TrimLeft(value[end:], " \t\r\n"); {
		case o.value != "null":
			kept = true
			inner := withoutNulls(o)
			value = value[:end-len(o.value)] + inner + value[end:]
		case kept:
			value = value[:strings.LastIndex(value[:at], ",")] + value[end:]
		case i+1 < len(inside):
			rest = strings.TrimLeft(rest[1:], " \t\r\n")
			value = value[:at] + rest
		default:
			value = value[:at] + value[end:]
		}
	}
	return value
}

// nullOption reports whether stream_options has a null member, for which it is rewritten: versions of vLLM refuse some.
func nullOption(all []rawMember) bool {
	for _, m := range all {
		if m.decodedName() == "stream_options" && m.value != "null" {
			inside, err := parseMembers([]byte(m.value))
			return err == nil && slices.ContainsFunc(inside, isNullOption)
		}
	}
	return false
}

func isNullOption(o rawMember) bool { return o.value == "null" }

// withUsage returns the JSON of stream_options with include_usage set to true.
func withUsage(options string) string {
	inside, err := parseMembers([]byte(options))
	if err != nil || len(inside) == 0 {
		return `{"include_usage":true` + options[1:]
	}
	if slices.ContainsFunc(inside, isNullOption) {
		continuous := func(o rawMember) bool { return o.decodedName() == "continuous_usage_stats" && o.value == "true" }
		if slices.ContainsFunc(inside, continuous) {
			return `{"include_usage":true,"continuous_usage_stats":true}`
		}
		return `{"include_usage":true}`
	}
	at := 0
	for _, m := range inside {
		at += strings.Index(options[at:], m.name) + len(m.name)
		if m.decodedName() == "include_usage" {
			at += strings.Index(options[at:], m.value)
			return options[:at] + "true" + options[at+len(m.value):]
		}
	}
	panic("continuous_usage_stats without include_usage")
}
