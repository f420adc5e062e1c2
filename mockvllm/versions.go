package mockvllm

import (
	"strconv"
	"strings"
)

// newestVersion is spoken unless Options.Version says otherwise.
const newestVersion = "0.27.0"

// A release is vLLM's version number as it compares: 0.10.1 is {0, 10, 1}.
type release [3]int

// parseRelease reads what it can of a version; "0.6.6.post1" is 0.6.6, and nonsense is the newest.
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

// What an old version does differently is data: each kind of difference is one type here, each version one row in
// the table below.
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
	bestOfHonoured bestOfRule = iota // V0 draws best_of outputs and returns the n likeliest
	bestOfRejected                   // V1 says that it cannot
	bestOfIgnored                    // the field is gone, unknown fields pass
)

const (
	contextRequested    contextRule = iota // "However, you requested T tokens (P in the messages, C in the completion)"
	contextTooLarge                        // "'max_tokens' or 'max_completion_tokens' is too large"
	contextOutputTokens                    // "However, you requested C output tokens and your prompt contains P input tokens"
)

const (
	deathEmpty          deathPlain = iota // 500 without a body
	deathInternal                         // 500, type "Internal Server Error"
	deathAsOK                             // 200 with an error inside
	deathInternalServer                   // 500, type "InternalServerError"
)

const (
	streamCut        deathStream = iota // the connection ends, without [DONE]
	streamBadRequest                    // an event that calls it the client's error 400
	streamInternal                      // an event with code 500
)

const (
	anyContentType  contentTypeRule = iota
	unsupportedType                 // 415 {"detail":…}
	badRequestType                  // 400 in the usual error shape
)

const (
	nullFillsContext nullMaxTokens = iota // generates to the end, then fails an assertion: 500 in plain text
	nullAsOK                              // the same, reported under 200
	nullInternal                          // the same, reported as JSON 500
	nullIsDefault                         // 16
)

// A profile is how one version of vLLM writes and judges.
type versionSpec struct {
	since release

	errors              errorShape
	validationType      string // the type of a schema error
	contentType         contentTypeRule
	repeatsSchemaErrors bool // schema errors are listed twice in the message
	bypassesPydantic    bool // checks of the request as a whole skip pydantic's wrapping
	namesParams         bool // errors carry param, and " (parameter=…, value=…)" in the message
	modelRequired       bool

	context          contextRule
	deathPlain       deathPlain
	deathStream      deathStream
	deadHealthStatus int  // the status of /health after the engine's death
	engineErrorsAsOK bool // what the engine refuses comes with status 200
	v0               bool // the V0 engine's texts

	bestOf                 bestOfRule
	nullMaxTokens          nullMaxTokens
	topKZeroIsOff          bool // top_k 0 means off; before, it is refused
	finiteOnly             bool // NaN and temperatures over 2 are refused
	repetitionCap          bool // repetition_penalty is at most 2
	boundsLists            bool // at most 4 stop strings and 1024 prompts
	boundsN                bool // n is at most 16384
	allowsMinusOneLogprobs bool // logprobs -1 asks for the whole vocabulary
	rejectsNegativeIDs     bool // a negative token id is a schema error
	rejectsDuplicateIDs    bool // a second request of the same id at a time is refused
	anyCaseBearer          bool

	nullUsageInEvents bool // "usage":null in every chunk
	fingerprint       bool
	transferParams    bool // service_tier, system_fingerprint, kv_transfer_params in the answer
	ecParams          bool // ec_transfer_params and metrics as well
	tokenIDs          bool // token_ids and prompt_token_ids in choices
	routedExperts     bool
	usageCompletion   bool // completion_tokens_details in usage
	echoOffsets       bool // text_offset goes on after an echoed prompt in later chunks
	cacheGauge        string
	tokenLatency      string
}

// profiles has a row for every version with which the wire changed, oldest first. Each row starts as a copy of the one
// before it. The facts and their dates are those of vLLM's history; a version between two rows speaks as the older.
var specs = buildSpecs(
	func(s *versionSpec) {
		*s = versionSpec{ //nolint:gosec // a metric named per token, no token
			since: release{0, 6, 0}, errors: flatErrors, validationType: "BadRequestError", modelRequired: true,
			deathPlain: deathEmpty, deathStream: streamCut, deadHealthStatus: 500, v0: true, bestOf: bestOfHonoured,
			repetitionCap: true, rejectsDuplicateIDs: true, nullUsageInEvents: true,
			cacheGauge: "vllm:gpu_cache_usage_perc", tokenLatency: "vllm:time_per_output_token_seconds",
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
	func(s *versionSpec) {
		s.since, s.contentType, s.validationType = release{0, 9, 0}, badRequestType, "Bad Request"
		s.deathPlain, s.repeatsSchemaErrors, s.topKZeroIsOff = deathInternal, true, true
	},
	func(s *versionSpec) { s.since, s.deadHealthStatus = release{0, 9, 2}, 500 },
	func(s *versionSpec) {
		s.since, s.transferParams, s.cacheGauge = release{0, 10, 0}, true, "vllm:kv_cache_usage_perc"
	},
	func(s *versionSpec) {
		s.since, s.errors, s.context, s.tokenIDs = release{0, 10, 1}, nestedErrors, contextTooLarge, true
	},
	func(s *versionSpec) {
		s.since, s.deadHealthStatus, s.tokenLatency = release{0, 11, 0}, 503, "vllm:inter_token_latency_seconds"
	},
	func(s *versionSpec) {
		s.since, s.bestOf, s.anyCaseBearer = release{0, 12, 0}, bestOfIgnored, true
	},
	func(s *versionSpec) {
		s.since, s.deathPlain, s.deathStream = release{0, 14, 0}, deathAsOK, streamInternal
		s.engineErrorsAsOK, s.namesParams, s.rejectsDuplicateIDs = true, true, false
		s.nullMaxTokens = nullAsOK
	},
	func(s *versionSpec) {
		s.since, s.deathPlain, s.engineErrorsAsOK = release{0, 16, 0}, deathInternalServer, false
		s.rejectsNegativeIDs, s.nullMaxTokens = true, nullInternal
	},
	func(s *versionSpec) { s.since, s.context = release{0, 17, 0}, contextOutputTokens },
	func(s *versionSpec) { s.since, s.boundsN = release{0, 19, 0}, true },
	func(s *versionSpec) { s.since, s.nullUsageInEvents, s.fingerprint = release{0, 20, 0}, false, true },
	func(s *versionSpec) { s.since, s.nullMaxTokens, s.finiteOnly = release{0, 24, 0}, nullIsDefault, true },
	func(s *versionSpec) {
		s.since, s.repeatsSchemaErrors, s.bypassesPydantic = release{0, 27, 0}, false, true
		s.boundsLists, s.ecParams, s.routedExperts, s.usageCompletion = true, true, true, true
		s.allowsMinusOneLogprobs = true
	},
)

// buildProfiles makes the rows by applying each change to a copy of the row before.
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

// profileOf is the row that a version speaks by; one older than the first row speaks as that.
func specOf(version release) versionSpec {
	found := specs[0]
	for _, row := range specs {
		if !version.before(row.since) {
			found = row
		}
	}
	return found
}
