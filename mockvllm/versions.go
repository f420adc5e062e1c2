package mockvllm

import (
	"strconv"
	"strings"
)

// newestVersion is the version imitated by default.
const newestVersion = "0.33.0"

// release is a vLLM version number in comparable form: 0.10.1 is {0, 10, 1}.
type release [3]int

// parseRelease parses as much of a version as it can: "0.6.6.post1" is 0.6.6, and text without a number is the newest.
func parseRelease(version string) release {
	var r release
	for i, part := range strings.SplitN(strings.TrimPrefix(version, "v"), ".", 4) {
		number, err := strconv.Atoi(part)
		if err != nil && i == 0 {
			return parseRelease(newestVersion)
		}
		if err != nil || i == len(r) {
			break
		}
		r[i] = number
	}
	return r
}

func (r release) before(other release) bool {
	for i := range r {
		if r[i] != other[i] {
			return r[i] < other[i]
		}
	}
	return false
}

// The differences between versions are data: each kind of difference is a type here, each version a row of specs.
type (
	errorShape      int
	bestOfRule      int
	contextRule     int
	deathPlain      int
	deathStream     int
	contentTypeRule int
	nullMaxTokens   int
)

const (
	flatErrors   errorShape = iota // {"object":"error","message":…}
	nestedErrors                   // {"error":{"message":…}}
)

const (
	bestOfHonoured bestOfRule = iota // V0 generates best_of outputs and returns the n most likely
	bestOfRejected                   // V1 rejects it
	bestOfIgnored                    // the field is gone, and unknown fields are ignored
)

const (
	contextRequested    contextRule = iota // "However, you requested T tokens (P in the messages, C in the completion)"
	contextTooLarge                        // "'max_tokens' or 'max_completion_tokens' is too large"
	contextOutputTokens                    // "However, you requested C output tokens and your prompt contains P input tokens"
	contextClamped                         // lowers max_tokens silently; rejects only a prompt that fills the context
)

const (
	deathEmpty          deathPlain = iota // 500 without a body
	deathInternal                         // 500, type "Internal Server Error"
	deathAsOK                             // 200 with an error inside
	deathInternalServer                   // 500, type "InternalServerError"
)

const (
	streamCut        deathStream = iota // closes the connection without [DONE]
	streamBadRequest                    // an event with code 400, as if the client were at fault
	streamInternal                      // an event with code 500
)

const (
	anyContentType  contentTypeRule = iota
	unsupportedType                 // 415 {"detail":…}
	badRequestType                  // 400 in the usual error shape
)

const (
	nullFillsContext nullMaxTokens = iota // generates everything, then fails an assertion: 500 as plain text
	nullAsOK                              // the same, reported with status 200
	nullInternal                          // the same, reported as JSON 500
	nullIsDefault                         // means 16
)

// versionSpec describes the wire format and the validation of one vLLM version.
type versionSpec struct {
	since release

	completionFields, chatFields []string // names of the fields of requests; others are ignored

	errors              errorShape
	rust                bool   // the Rust frontend
	validationType      string // "type" of a schema error
	contentType         contentTypeRule
	repeatsSchemaErrors bool // the message lists schema errors twice
	bypassesPydantic    bool // checks across fields are not wrapped as pydantic errors
	namesParams         bool // errors carry param, and " (parameter=…, value=…)" in the message
	scrubsSchemaErrors  bool // schema errors quote containers by size only, and their loc is a dotted path
	modelRequired       bool
	promptRequired      bool // without prompt_embeds, prompt is required but may be empty
	listsAliases        bool // the error about an unknown model lists the served names
	suffixWithFIM       bool // the error about suffix mentions models for fill-in-the-middle
	renderer            bool // "You must pass at least one prompt"; older versions: "please provide at least one prompt"

	context          contextRule
	deathPlain       deathPlain
	deathStream      deathStream
	deadHealthStatus int    // status of /health when the engine is dead
	engineErrorsAsOK bool   // errors of the engine have status 200
	v0               bool   // the V0 engine's texts
	engineDead       string // text of a dead V1 engine
	busyType         string // "type" of a 503
	echoFails        bool   // echo fails with stream, and with logprobs and n > 1, in the engine

	bestOf                 bestOfRule
	nullMaxTokens          nullMaxTokens
	topKZeroIsOff          bool // top_k 0 means off; older versions reject it
	finiteOnly             bool // rejects NaN and temperatures over 2
	repetitionCap          bool // repetition_penalty is at most 2
	boundsPrompts          bool // at most 1024 prompts
	boundsStop             bool // at most 4 stop strings
	boundsN                bool // n is at most 16384
	allowsMinusOneLogprobs bool // logprobs -1 asks for the whole vocabulary
	rejectsNegativeIDs     bool // a negative token id is a schema error
	rejectsDuplicateIDs    bool // rejects a request whose id another running request has
	anyCaseBearer          bool

	strictSalts   bool // cache_salt is at most 128 characters, some of which are refused
	namesNoPrompt bool // the error about an empty list of prompts has a param
	finishesEmpty bool // a stream without a token has its event with finish_reason
	truncateAll   bool // truncate_prompt_tokens -1 means as many tokens as fit
	jsonSchema    bool // of response_format in completions
	checksStopIDs bool // rejects stop_token_ids outside the vocabulary

	nullUsageInEvents bool // "usage":null in every event
	fingerprint       bool
	transferParams    bool // service_tier, system_fingerprint, kv_transfer_params in the response
	ecParams          bool // ec_transfer_params and metrics as well
	tokenIDs          bool // token_ids and prompt_token_ids in choices
	routedExperts     bool
	usageCompletion   bool   // completion_tokens_details in usage
	tokenizesTools    bool   // /tokenize renders tools
	reasoningField    string // in messages and deltas
	emptyToolCalls    bool   // a message without tool calls has an empty list of them
	promptText        bool   // prompt_text in chat completions
	tokenStrings      bool   // token_strs in the response to /tokenize
	randomBytes       int    // of a random id, which has two characters for each
	weightVersions    bool   // in choices, and kv_transfer_params in events
	varyOrigin        bool   // every response has "Vary: Origin"
	echoOffsets       bool   // later events count text_offset from the echoed prompt
	cacheGauge        string
	prefixCache       string // of the counters, without _queries_total and _hits_total; V1 only
	tokenLatency      string
}

// specs has a row for each version that changed the wire format, oldest first. Each row starts as a copy of the
// previous one. The facts and dates are from vLLM's history; a version between two rows has the older row's format.
var specs = buildSpecs(
	func(s *versionSpec) {
		*s = versionSpec{ //nolint:gosec // a metric name, not a credential
			since: release{0, 6, 0}, errors: flatErrors, validationType: "BadRequestError", modelRequired: true,
			promptRequired: true, deathPlain: deathEmpty, deathStream: streamCut, deadHealthStatus: 500, v0: true, bestOf: bestOfHonoured,
			engineDead: engineDeadV1, busyType: "Service Unavailable", randomBytes: 16, finishesEmpty: true,
			repetitionCap: true, rejectsDuplicateIDs: true, nullUsageInEvents: true, reasoningField: "reasoning_content", emptyToolCalls: true,
			cacheGauge: "vllm:gpu_cache_usage_perc", prefixCache: "vllm:gpu_prefix_cache", tokenLatency: "vllm:time_per_output_token_seconds",
		}
	},
	func(s *versionSpec) {
		s.since, s.contentType, s.deathStream = release{0, 7, 0}, unsupportedType, streamBadRequest
	},
	func(s *versionSpec) {
		s.since, s.bestOf, s.modelRequired = release{0, 8, 0}, bestOfRejected, false
		s.v0, s.deadHealthStatus = false, 200
	},
	func(s *versionSpec) { s.since, s.repetitionCap = release{0, 8, 4}, false },
	// 0.8 has both engines. 0.8.0 to 0.8.4 imitate V1, and 0.8.5 imitates V0, as recorded from it.
	func(s *versionSpec) {
		s.since, s.v0, s.echoFails, s.bestOf, s.deadHealthStatus = release{0, 8, 5}, true, true, bestOfHonoured, 500
	},
	func(s *versionSpec) {
		s.v0, s.echoFails, s.bestOf, s.deadHealthStatus = false, false, bestOfRejected, 200
		s.promptRequired, s.tokenStrings, s.tokenizesTools = false, true, true
		s.since, s.contentType, s.validationType = release{0, 9, 0}, badRequestType, "Bad Request"
		s.deathPlain, s.repeatsSchemaErrors, s.topKZeroIsOff = deathInternal, true, true
	},
	func(s *versionSpec) { s.since, s.deadHealthStatus = release{0, 9, 2}, 500 },
	func(s *versionSpec) {
		s.since, s.transferParams, s.cacheGauge = release{0, 10, 0}, true, "vllm:kv_cache_usage_perc"
		s.prefixCache = "vllm:prefix_cache"
	},
	func(s *versionSpec) {
		s.since, s.errors, s.context, s.tokenIDs = release{0, 10, 1}, nestedErrors, contextTooLarge, true
	},
	func(s *versionSpec) {
		s.since, s.deadHealthStatus, s.tokenLatency = release{0, 11, 0}, 503, "vllm:inter_token_latency_seconds"
		s.truncateAll, s.jsonSchema = true, true
	},
	func(s *versionSpec) {
		s.since, s.bestOf, s.anyCaseBearer = release{0, 12, 0}, bestOfIgnored, true
		s.reasoningField = "reasoning"
	},
	func(s *versionSpec) {
		s.since, s.deathPlain, s.deathStream = release{0, 14, 0}, deathAsOK, streamInternal
		s.engineErrorsAsOK, s.namesParams, s.rejectsDuplicateIDs = true, true, false
		s.nullMaxTokens, s.renderer, s.truncateAll = nullAsOK, true, false // refused in 0.14.1, taken in 0.20.2
	},
	func(s *versionSpec) {
		s.since, s.deathPlain, s.engineErrorsAsOK = release{0, 16, 0}, deathInternalServer, false
		s.rejectsNegativeIDs, s.nullMaxTokens = true, nullInternal
	},
	func(s *versionSpec) { s.since, s.context = release{0, 17, 0}, contextOutputTokens },
	func(s *versionSpec) { s.since, s.boundsN = release{0, 19, 0}, true },
	func(s *versionSpec) {
		s.since, s.nullUsageInEvents, s.fingerprint, s.truncateAll = release{0, 20, 0}, false, true, true
	},
	func(s *versionSpec) { s.since, s.nullMaxTokens, s.finiteOnly = release{0, 24, 0}, nullIsDefault, true },
	func(s *versionSpec) {
		s.since, s.repeatsSchemaErrors, s.bypassesPydantic = release{0, 27, 0}, false, true
		s.boundsPrompts, s.ecParams, s.routedExperts = true, true, true
	},
	func(s *versionSpec) { s.since, s.boundsStop = release{0, 28, 0}, true },
	func(s *versionSpec) {
		s.since, s.usageCompletion, s.allowsMinusOneLogprobs = release{0, 29, 0}, true, true
	},
	func(s *versionSpec) { s.since, s.strictSalts = release{0, 30, 0}, true },
	// 0.32.0 as recorded from it. Some of these changes may be older.
	func(s *versionSpec) {
		s.since, s.context, s.scrubsSchemaErrors, s.listsAliases = release{0, 32, 0}, contextClamped, true, true
		s.emptyToolCalls, s.promptText, s.finishesEmpty = false, true, false
		s.suffixWithFIM, s.checksStopIDs, s.varyOrigin, s.echoOffsets, s.randomBytes = true, true, true, true, 8
	},
	func(s *versionSpec) {
		s.since, s.weightVersions, s.namesNoPrompt, s.finishesEmpty = release{0, 33, 0}, true, true, true
		s.busyType = "ServiceUnavailableError"
		s.engineDead = "The server had an error while processing your request."
	},
)

// buildSpecs builds the rows by applying each change to a copy of the previous row.
func buildSpecs(changes ...func(*versionSpec)) []versionSpec {
	rows := make([]versionSpec, len(changes))
	for i, change := range changes {
		if i > 0 {
			rows[i] = rows[i-1]
		}
		change(&rows[i])
	}
	return rows
}

// specOf returns the row of a version. Versions older than the first row have the first row's format.
func specOf(version release) versionSpec {
	found := specs[0]
	for _, row := range specs {
		if !version.before(row.since) {
			found = row
		}
	}
	found.completionFields, found.chatFields = fieldsOf(version, false), fieldsOf(version, true)
	return found
}
