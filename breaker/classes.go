package breaker

import apierr "basegate/errors"

// Class is the kind of result that an attempt at a backend had.
type Class uint8

// The classes. The table below holds the consequences of each.
const (
	Success         Class = iota // a complete response, or the first event of a stream
	ClientError                  // a request that vLLM rejected as the client's mistake
	ContextLength                // a prompt that vLLM found too long
	Busy                         // a healthy backend without free capacity
	OutOfMemory                  // a GPU out of memory
	OutOfMemoryDead              // that, which killed the engine
	EngineDead                   // an engine that does not respond again until its process is restarted
	ServerError                  // any other response with status 500 or above
	RequestFailed                // status 500, or an error within a response, while /health is good: the request may be the cause
	Ended                        // a response that broke off because the process has ended, as vLLM's Rust frontend does with its engine
	Aborted                      // a completion that vLLM aborted, as it does when it shuts down or goes to sleep
	Malformed                    // a response in a form that vLLM does not send: not JSON, not events, no finish reason
	Truncated                    // a response that broke off after it had begun
	Refused                      // a connection that could not be made
	Reset                        // a connection that broke before a response began
	TimedOut                     // a backend that sent nothing for longer than is allowed
	TooLarge                     // a response that is larger than the gateway takes
	LocalFault                   // a lack of file descriptors, ports or memory on this side, which says nothing about the backend
	Misconfigured                // a backend that rejects the gateway's key, path or model, which is the operator's mistake
	AdapterGone                  // a backend that does not know the adapter that it had loaded: it has restarted, or another gateway has unloaded it
	ClientGone                   // the client disconnected, or the gateway is stopping, which says nothing about the backend
	classCount
)

// Retry says which backends another attempt may use, as long as no byte has been sent to the client.
type Retry uint8

// The values of Retry.
const (
	RetryNever         Retry = iota // the request ends
	RetryElsewhereOnce              // one other backend, and none after a second outcome of this kind: the request itself may be the cause
	RetryElsewhere                  // only other backends
	RetryAnywhere                   // other backends before the same one
)

// row holds the consequences of a class.
type row struct {
	name   string
	proof  string      // what the class is known by
	code   apierr.Code // of the error response, if no further attempt is made
	counts bool        // the breaker counts it as a failure
	opens  bool        // the breaker opens at once, whatever the count
	deadly bool        // the engine is dead, and the request may have killed it
	gone   bool        // the backend serves nothing before a probe succeeds
	retry  Retry
	advice string // to the client; for classes without a response it contains %s for the model's id
}

// table defines what each class of failure leads to. Only proxy's forward reads the retry column.
var table = [classCount]row{
	Success:         {name: "success", proof: "a complete response"},
	ClientError:     {name: "client_error", proof: "400, 413, 422", code: apierr.InvalidRequest},
	ContextLength:   {name: "context_length", proof: "4xx with a text about the context", code: apierr.VLLMContextLength, advice: "the model server found the prompt too long for its context; shorten the prompt or ask for fewer tokens"},
	Busy:            {name: "busy", proof: "429, or 503 of vLLM while /health is 200", code: apierr.Overloaded, retry: RetryElsewhere, advice: "every backend of %s is busy"},
	OutOfMemory:     {name: "out_of_memory", proof: "a text about the GPU's memory", code: apierr.VLLMOutOfMemory, counts: true, advice: "the model server ran out of GPU memory; try a shorter prompt, fewer tokens, a lower n or fewer logprobs"},
	OutOfMemoryDead: {name: "out_of_memory_dead", proof: "that, of a dead engine", code: apierr.VLLMOutOfMemory, counts: true, opens: true, deadly: true, gone: true, advice: "the model server ran out of GPU memory and stopped; try a shorter prompt, fewer tokens, a lower n or fewer logprobs once it is back"},
	EngineDead:      {name: "engine_dead", proof: "any failure while /health is 503 or 500, or a text about the engine", code: apierr.VLLMEngineDead, counts: true, opens: true, deadly: true, gone: true, retry: RetryElsewhereOnce, advice: "the model server's engine has crashed; try again, and report it if it stays so"},
	ServerError:     {name: "server_error", proof: "500 or above while /health does not answer", code: apierr.UpstreamServerError, counts: true, retry: RetryAnywhere, advice: "the model server failed; try again"},
	RequestFailed:   {name: "request_failed", proof: "500 while /health is 200", code: apierr.UpstreamServerError, counts: true, retry: RetryElsewhereOnce, advice: "the model server failed at this request, and works otherwise; try again, or change the request"},
	Ended:           {name: "ended", proof: "a connection that broke, and /health is refused", code: apierr.UpstreamServerError, counts: true, gone: true, retry: RetryElsewhereOnce, advice: "the model server ended while it worked on the request; try again"},
	Aborted:         {name: "aborted", proof: "finish_reason abort, or silence while new connections are refused", code: apierr.UpstreamServerError, counts: true, retry: RetryElsewhere, advice: "the model server gave the request up, as it does when it shuts down; try again"},
	Malformed:       {name: "garbled", proof: "a body or an event that vLLM does not send", code: apierr.UpstreamServerError, counts: true, retry: RetryAnywhere, advice: "the model server's answer made no sense; try again"},
	Truncated:       {name: "truncated", proof: "a response that broke off, and /health answers", code: apierr.UpstreamServerError, counts: true, retry: RetryAnywhere, advice: "the model server's answer broke off; try again"},
	Refused:         {name: "refused", proof: "no connection", code: apierr.UpstreamUnreachable, counts: true, gone: true, retry: RetryAnywhere, advice: "no backend of %s could be reached"},
	Reset:           {name: "reset", proof: "a connection that broke before a response, and /health answers", code: apierr.UpstreamUnreachable, counts: true, retry: RetryAnywhere, advice: "the connection to the backend of %s broke before an answer came"},
	TimedOut:        {name: "timed_out", proof: "the timeouts of upstream", code: apierr.UpstreamUnreachable, counts: true, retry: RetryElsewhere, advice: "the backend of %s was silent for too long"},
	TooLarge:        {name: "too_large", proof: "upstream.max_answer_bytes", code: apierr.UpstreamServerError, advice: "the model server's answer is larger than this gateway takes; ask for fewer or shorter completions, or fewer log-probabilities"},
	LocalFault:      {name: "local_fault", proof: "an error of the gateway's own system", code: apierr.Overloaded, advice: "the gateway has no connections or memory to spare for %s at the moment"},
	Misconfigured:   {name: "misconfigured", proof: "any other 4xx", code: apierr.UpstreamServerError, counts: true, retry: RetryElsewhere, advice: "the model server cannot serve this model at the moment; try again later, and report it if it stays so"},
	AdapterGone:     {name: "adapter_gone", proof: "404 for an adapter that was loaded", code: apierr.AdapterUnavailable, retry: RetryAnywhere, advice: "the model server has lost the adapter again and again; report it"},
	ClientGone:      {name: "client_gone", proof: "the client's connection"},
}

func (c Class) row() *row { return &table[c] }

// String returns the class's name in logs and metrics.
func (c Class) String() string { return table[c].name }

// Retry returns which backends another attempt may use.
func (c Class) Retry() Retry { return table[c].retry }

// Code returns the code of the error response to the client; empty for Success and ClientGone.
func (c Class) Code() apierr.Code { return table[c].code }

// Deadly reports whether the engine is dead, and the request may have killed it.
func (c Class) Deadly() bool { return table[c].deadly }

// Gone reports whether the backend serves nothing before a probe succeeds.
func (c Class) Gone() bool { return table[c].gone }
