package mockvllm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// prompt is a text or a list of token ids, as the client sent it.
type prompt struct {
	text   string
	tokens []int
	isText bool
}

// completionRequest is the body of a completion after pydantic's validation: types are right, ranges are not
// checked.
type completionRequest struct {
	model     string
	prompts   []prompt
	stream    bool
	echo      bool
	hasSuffix bool

	n             int
	bestOf        int
	maxTokens     int
	maxTokensNull bool
	minTokens     int
	sampling      sampling

	topKGiven    bool
	allowedGiven bool

	stop             []string
	stopTokens       []int
	badWords         []string
	includeStop      bool
	ignoreEOS        bool
	showSpecial      bool
	addSpecial       bool
	truncate         *int
	truncateRight    bool // keeps the first tokens, not the last
	streamInterval   int  // tokens per event, but for the first and the last; 0 means 1
	logprobs         *int
	promptLogprobs   *int
	logitBias        []biasEntry
	requestID        string
	priority         int
	cacheSalt        string
	returnTokenIDs   bool
	tokensAsIDs      bool
	weightVersions   bool
	includeUsage     bool
	continuousUsage  bool
	hasStreamOptions bool

	constraints     []constraint // of response_format and structured_outputs
	guided          []constraint // of guided_json and its like
	structuredGiven bool
	lacksJSONSchema bool
	emptyCacheSalt  bool

	chat *chatRequest // nil for a completion
}

// maxStopStrings is the limit of versions that have one.
const maxStopStrings = 4

type biasEntry struct {
	key    string
	amount float64
}

// parseCompletion does pydantic's part: it coerces fields, and returns a schema error for those that cannot be
// coerced.
func (s *versionSpec) parseCompletion(body value) (*completionRequest, *failure) {
	if body.kind != objectKind {
		return nil, s.schemaFailure([]schemaError{{
			kind: "model_attributes_type", message: "Input should be a valid dictionary or object to extract fields from",
			input: body,
		}})
	}
	r := &completionRequest{
		n: 1, maxTokens: 16, addSpecial: true,
		sampling: sampling{temperature: 1, topP: 1, repetition: 1},
	}
	f := &fieldReader{body: known(body, s.completionFields), whole: body}
	s.readPrompt(f, r)
	s.readOutputFields(f, r)
	if len(f.errs) > 0 {
		return nil, s.schemaFailure(f.errs)
	}
	if failure := s.checkCombinations(f, r); failure != nil {
		return nil, failure
	}
	return r, nil
}

func (s *versionSpec) readOutputFields(f *fieldReader, r *completionRequest) {
	f.integer("n", s.rust, &r.n)
	f.integer("best_of", true, &r.bestOf)
	f.integer("max_tokens", true, &r.maxTokens)
	if v, present := f.body.member("max_tokens"); present && v.kind == nullKind {
		r.maxTokensNull = true
	}
	f.boolean("echo", true, &r.echo)
	f.boolean("add_special_tokens", false, &r.addSpecial)
	spaces := true // without effect: the tokenizer puts no space between special tokens
	f.boolean("spaces_between_special_tokens", false, &spaces)
	r.logprobs = optionalInt(f, "logprobs")
	r.promptLogprobs = optionalInt(f, "prompt_logprobs")
	f.integer("priority", false, &r.priority)
	var ignored string
	if v, present := f.body.member("suffix"); present && v.kind != nullKind {
		r.hasSuffix = true
		readField(f, "suffix", true, asString, &ignored)
	}
	s.readSharedFields(f, r)
}

// readSharedFields reads the fields about the output that completions and chat completions have in common.
func (s *versionSpec) readSharedFields(f *fieldReader, r *completionRequest) {
	f.integer("min_tokens", false, &r.minTokens)
	s.readStop(f, r)
	f.ints("stop_token_ids", &r.stopTokens)
	f.boolean("include_stop_str_in_output", false, &r.includeStop)
	f.boolean("ignore_eos", false, &r.ignoreEOS)
	f.stringList("bad_words", &r.badWords)
	skip := true
	f.boolean("skip_special_tokens", false, &skip)
	r.showSpecial = !skip
	f.boolean("return_token_ids", true, &r.returnTokenIDs)
	f.boolean("return_tokens_as_token_ids", true, &r.tokensAsIDs)
	f.boolean("return_weight_versions", false, &r.weightVersions)
	readField(f, "request_id", false, asString, &r.requestID)
	var ignored string
	readField(f, "user", true, asString, &ignored)
	readSamplingFields(f, r)
	readStreamFields(f, r)
	s.readConstraints(f, r)
	s.readCacheSalt(f, r)
}

// maxCacheSalt is the limit of versions that have one, in characters.
const maxCacheSalt = 1024

// readCacheSalt reads cache_salt, which separates the prefixes of requests with different salts.
func (s *versionSpec) readCacheSalt(f *fieldReader, r *completionRequest) {
	if !readField(f, "cache_salt", true, asString, &r.cacheSalt) {
		return
	}
	r.emptyCacheSalt = r.cacheSalt == ""
	if s.scrubsSchemaErrors && utf8.RuneCountInString(r.cacheSalt) > maxCacheSalt {
		v, _ := f.body.member("cache_salt")
		f.errs = append(f.errs, schemaError{
			kind: "string_too_long", loc: []string{"cache_salt"}, input: v,
			message: fmt.Sprintf("String should have at most %d characters", maxCacheSalt),
			context: fmt.Sprintf("{'max_length': %d}", maxCacheSalt),
		})
	}
}

// readStop reads stop, whose length newer versions limit in the schema.
func (s *versionSpec) readStop(f *fieldReader, r *completionRequest) {
	f.strings("stop", &r.stop)
	if !s.boundsStop || len(r.stop) <= maxStopStrings {
		return
	}
	v, _ := f.body.member("stop")
	f.addError(stringType, v, "stop", "str")
	f.errs = append(f.errs, schemaError{
		kind: "too_long", loc: []string{"stop", "list[str]"}, input: v,
		message: fmt.Sprintf("List should have at most %d items after validation, not %d", maxStopStrings, len(r.stop)),
		context: fmt.Sprintf("{'field_type': 'List', 'max_length': %d, 'actual_length': %d}", maxStopStrings, len(r.stop)),
	})
}

func optionalInt(f *fieldReader, name string) *int {
	var number int
	if !f.integer(name, true, &number) {
		return nil
	}
	return &number
}

func readSamplingFields(f *fieldReader, r *completionRequest) {
	p := &r.sampling
	f.float("temperature", &p.temperature)
	f.float("top_p", &p.topP)
	r.topKGiven = f.integer("top_k", true, &p.topK)
	f.float("min_p", &p.minP)
	f.float("presence_penalty", &p.presence)
	f.float("frequency_penalty", &p.frequency)
	f.float("repetition_penalty", &p.repetition)
	f.ints("allowed_token_ids", &p.allowed)
	allowed, present := f.body.member("allowed_token_ids")
	r.allowedGiven = present && allowed.kind != nullKind
	var seed int64
	if readField(f, "seed", true, asInt, &seed) && seed != -1 {
		p.seed = &seed
	}
	v, present := f.body.member("logit_bias")
	if !present || v.kind == nullKind {
		return
	}
	if v.kind != objectKind {
		f.addError(dictType, v, "logit_bias")
		return
	}
	for _, m := range v.members {
		amount, c := asFloat(m.value)
		f.addError(c, m.value, "logit_bias", m.name)
		r.logitBias = append(r.logitBias, biasEntry{m.name, min(100, max(-100, amount))})
	}
}

func readStreamFields(f *fieldReader, r *completionRequest) {
	f.boolean("stream", true, &r.stream)
	if f.integer("stream_interval", true, &r.streamInterval) && r.streamInterval < 1 {
		v, _ := f.body.member("stream_interval")
		f.addBound(1, v, "stream_interval")
	}
	if v, present := f.body.member("repetition_detection"); present && v.kind != nullKind && v.kind != objectKind {
		f.addError(dictType, v, "repetition_detection")
	}
	v, present := f.body.member("stream_options")
	if !present || v.kind == nullKind {
		return
	}
	if v.kind != objectKind {
		f.addError(dictType, v, "stream_options")
		return
	}
	r.hasStreamOptions = len(v.members) > 0
	inner := &fieldReader{body: v}
	inner.boolean("include_usage", true, &r.includeUsage)
	inner.boolean("continuous_usage_stats", true, &r.continuousUsage)
	for _, p := range inner.errs {
		p.loc = append([]string{"stream_options"}, p.loc...)
		f.errs = append(f.errs, p)
	}
}

// readPrompt tries the branches of the prompt's union type in vLLM's order. If none fits, it adds one error per
// branch.
func (s *versionSpec) readPrompt(f *fieldReader, r *completionRequest) {
	if s.modelRequired {
		f.require("model")
	}
	readField(f, "model", true, asString, &r.model)
	s.readTruncation(f, r)
	v, present := f.body.member("prompt")
	switch {
	case !present && (s.promptRequired || s.rust):
		f.require("prompt")
		return
	case !present || v.kind == nullKind && !s.promptRequired:
		return
	}
	if tokens, ok := s.tokenList(v); ok {
		r.prompts = []prompt{{tokens: tokens}}
		return
	}
	if prompts, ok := s.promptList(v); ok {
		r.prompts = prompts
		return
	}
	s.addPromptErrors(f, v)
}

// addPromptErrors adds the errors of each branch of the prompt's union type.
func (s *versionSpec) addPromptErrors(f *fieldReader, v value) {
	const ints, lists, texts = "list[int]", "list[list[int]]", "list[str]"
	isList := v.kind == listKind
	if !isList {
		f.addError(listType, v, "prompt", ints)
	}
	s.addIntErrors(f, v, "prompt", ints)
	if !isList {
		f.addError(listType, v, "prompt", lists)
	}
	for i, item := range v.items {
		if item.kind != listKind {
			f.addError(listType, item, "prompt", lists, decimal(i))
		}
		s.addIntErrors(f, item, "prompt", lists, decimal(i))
	}
	f.addError(stringType, v, "prompt", "str")
	if !isList {
		f.addError(listType, v, "prompt", texts)
	}
	for i, item := range v.items {
		_, c := asString(item)
		f.addError(c, item, "prompt", texts, decimal(i))
	}
}

// addIntErrors adds an error for each item of a list that is no token id.
func (s *versionSpec) addIntErrors(f *fieldReader, list value, loc ...string) {
	for i, item := range list.items {
		number, c := asInt(item)
		at := append(slices.Clone(loc), decimal(i))
		f.addError(c, item, at...)
		if c.kind == "" && number < 0 && s.rejectsNegativeIDs {
			f.addBound(0, item, at...)
		}
	}
}

// readTruncation reads truncate_prompt_tokens, whose lower bound is part of the schema.
func (s *versionSpec) readTruncation(f *fieldReader, r *completionRequest) {
	r.truncate = optionalInt(f, "truncate_prompt_tokens")
	least := 1
	if s.truncateAll {
		least = -1
	}
	if v, present := f.body.member("truncation_side"); present && v.kind != nullKind {
		if r.truncateRight = v.text == "right"; v.text != "left" && v.text != "right" {
			f.addLiteralError(v, "'left' or 'right'", "truncation_side")
		}
	}
	if r.truncate != nil && *r.truncate < least {
		v, _ := f.body.member("truncate_prompt_tokens")
		f.addBound(least, v, "truncate_prompt_tokens")
	}
}

func (f *fieldReader) require(name string) {
	if _, present := f.body.member(name); !present {
		f.addError(typeError{"missing", "Field required"}, f.whole, name)
	}
}

// tokenList parses [1,2]. An empty list is a prompt without tokens.
func (s *versionSpec) tokenList(v value) ([]int, bool) {
	if v.kind != listKind {
		return nil, false
	}
	tokens := make([]int, 0, len(v.items))
	for _, item := range v.items {
		number, c := asInt(item)
		if item.kind == stringKind || c.kind != "" || number < 0 && s.rejectsNegativeIDs {
			return nil, false
		}
		tokens = append(tokens, int(number))
	}
	return tokens, true
}

// promptList parses [[1],[2]], "text" and ["text","text"].
func (s *versionSpec) promptList(v value) ([]prompt, bool) {
	if v.kind == stringKind {
		return []prompt{{text: v.text, isText: true}}, true
	}
	if v.kind != listKind || s.rust {
		return nil, false
	}
	prompts := make([]prompt, 0, len(v.items))
	for _, item := range v.items {
		if item.kind != v.items[0].kind {
			return nil, false
		}
		if item.kind == stringKind {
			prompts = append(prompts, prompt{text: item.text, isText: true})
			continue
		}
		tokens, ok := s.tokenList(value{kind: item.kind, items: coerceDigitStrings(item.items)})
		if !ok {
			return nil, false
		}
		prompts = append(prompts, prompt{tokens: tokens})
	}
	return prompts, true
}

// coerceDigitStrings turns strings of digits into numbers: pydantic accepts [["1"]] for [[1]], but not ["1"] for [1].
func coerceDigitStrings(items []value) []value {
	coerced := make([]value, len(items))
	for i, item := range items {
		coerced[i] = item
		if number, c := asInt(item); item.kind == stringKind && c.kind == "" {
			coerced[i] = value{kind: numberKind, text: strconv.FormatInt(number, 10)}
		}
	}
	return coerced
}

// checkCombinations makes vLLM's checks of fields against each other.
func (s *versionSpec) checkCombinations(f *fieldReader, r *completionRequest) *failure {
	reject := func(param, message string) *failure {
		if s.bypassesPydantic {
			return invalidParam(param, "%s", message)
		}
		return s.schemaFailure([]schemaError{{
			kind: "value_error", message: "Value error, " + message, input: f.whole,
			context: "{'error': ValueError(" + reprString(message) + ")}",
		}})
	}
	positive := " must be a positive value."
	if s.allowsMinusOneLogprobs {
		positive = " must be a positive value or -1."
	}
	negative := func(number *int) bool {
		return number != nil && *number < 0 && (*number != -1 || !s.allowsMinusOneLogprobs)
	}
	if param, message := r.constraintProblem(); message != "" {
		return reject(param, message)
	}
	if r.emptyCacheSalt {
		return reject("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	if s.strictSalts && (utf8.RuneCountInString(r.cacheSalt) > 128 || strings.ContainsAny(r.cacheSalt, "@/\\\x00")) {
		return reject("cache_salt", `Parameter 'cache_salt' must be at most 128 characters, none of them '@', '/', '\\' or NUL.`)
	}
	empty := len(r.prompts) == 0 || len(r.prompts) == 1 && r.prompts[0].isText && r.prompts[0].text == ""
	switch {
	case f.hasEmptyPromptList():
		return s.noPromptFailure()
	case !s.promptRequired && !s.rust && empty:
		return reject("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	case s.boundsPrompts && len(r.prompts) > 1024:
		return reject("prompt", fmt.Sprintf("prompt list length %d exceeds the maximum "+
			"allowed count of 1024. To increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.", len(r.prompts)))
	case r.hasStreamOptions && !r.stream:
		return reject("stream_options", "Stream options can only be defined when `stream=True`.")
	case negative(r.promptLogprobs):
		return reject("prompt_logprobs", "`prompt_logprobs`"+positive)
	case r.stream && r.promptLogprobs != nil && *r.promptLogprobs != 0:
		return reject("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.")
	case negative(r.logprobs):
		return reject("logprobs", "`logprobs`"+positive)
	}
	return nil
}

// hasEmptyPromptList reports whether the prompt is [], which is no prompt; [[]] is one prompt without tokens.
func (f *fieldReader) hasEmptyPromptList() bool {
	v, present := f.body.member("prompt")
	return present && v.kind == listKind && len(v.items) == 0
}
