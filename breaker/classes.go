package breaker

import apierr "basegate/errors"

// Class is what became of an attempt at a backend.
type Class uint8

// The classes. Their rows in the table say what follows from each.
const (
	// Success is a whole answer, or the first event of a stream.
	Success Class = iota
	// ClientError is a request that vLLM refused as the client's mistake.
	ClientError
	// ContextLength is a prompt that vLLM found too long.
	ContextLength
	// Busy is a backend that has no room at the moment; it is healthy.
	Busy
	// OutOfMemory is a GPU out of memory.
	OutOfMemory
	// OutOfMemoryDead is a GPU out of memory that took the engine with it.
	OutOfMemoryDead
	// EngineDead is an engine that will not answer any more, until the process is started anew.
	EngineDead
	// ServerError is any other answer of 500 and over.
	ServerError
	// Aborted is an answer that vLLM gave up, as it does when it shuts down or goes to sleep.
	Aborted
	// Garbled is an answer that is not what vLLM sends: not JSON, not events, no finish.
	Garbled
	// Truncated is an answer that broke off after it had begun.
	Truncated
	// Refused is a connection that could not be made.
	Refused
	// Reset is a connection that broke before an answer began.
	Reset
	// TimedOut is a backend that did not answer, or fell silent, for longer than is allowed.
	TimedOut
	// ClientGone is a request that ended from this side: its client left, or the gateway stops. It says nothing about
	// the backend.
	ClientGone
	classCount
)

// Retry says where another attempt may be made, before the first byte has gone to the client.
type Retry uint8

const (
	// RetryNever ends the request.
	RetryNever Retry = iota
	// RetryElsewhere allows another backend only.
	RetryElsewhere
	// RetryAnywhere prefers another backend and allows the same.
	RetryAnywhere
)

type row struct {
	name   string
	code   apierr.Code // of the answer, where no attempt follows
	counts bool        // the breaker counts it
	opens  bool        // the breaker opens at once
	retry  Retry
	advice string // to the client, in words; of a backend that gave no answer with %s for the model's id
}

// table decides everything after an attempt.
var table = [classCount]row{
	Success:         {name: "success"},
	ClientError:     {name: "client_error", code: apierr.InvalidRequest},
	ContextLength:   {name: "context_length", code: apierr.VLLMContextLength, advice: "the model server found the prompt too long for its context; shorten the prompt or lower max_tokens"},
	Busy:            {name: "busy", code: apierr.UpstreamServerError, retry: RetryElsewhere, advice: "the model server has no room at the moment; try again shortly"},
	OutOfMemory:     {name: "out_of_memory", code: apierr.VLLMOutOfMemory, counts: true, advice: "the model server ran out of GPU memory; try a shorter prompt, fewer max_tokens, a lower n or fewer logprobs"},
	OutOfMemoryDead: {name: "out_of_memory_dead", code: apierr.VLLMOutOfMemory, counts: true, opens: true, advice: "the model server ran out of GPU memory and stopped; try a shorter prompt, fewer max_tokens, a lower n or fewer logprobs once it is back"},
	EngineDead:      {name: "engine_dead", code: apierr.VLLMEngineDead, counts: true, opens: true, retry: RetryElsewhere, advice: "the model server's engine has crashed; try again, and report it if it stays so"},
	ServerError:     {name: "server_error", code: apierr.UpstreamServerError, counts: true, retry: RetryAnywhere, advice: "the model server failed; try again"},
	Aborted:         {name: "aborted", code: apierr.UpstreamServerError, counts: true, retry: RetryElsewhere, advice: "the model server gave the request up, as it does when it shuts down; try again"},
	Garbled:         {name: "garbled", code: apierr.UpstreamServerError, counts: true, retry: RetryAnywhere, advice: "the model server's answer made no sense; try again"},
	Truncated:       {name: "truncated", code: apierr.UpstreamServerError, counts: true, retry: RetryAnywhere, advice: "the model server's answer broke off; try again"},
	Refused:         {name: "refused", code: apierr.UpstreamUnreachable, counts: true, retry: RetryAnywhere, advice: "no backend of %s could be reached"},
	Reset:           {name: "reset", code: apierr.UpstreamUnreachable, counts: true, retry: RetryAnywhere, advice: "the connection to the backend of %s broke before an answer came"},
	TimedOut:        {name: "timed_out", code: apierr.UpstreamUnreachable, counts: true, retry: RetryElsewhere, advice: "the backend of %s was silent for too long"},
	ClientGone:      {name: "client_gone"},
}

func (c Class) row() *row { return &table[c] }

// String is the class's name in logs and metrics.
func (c Class) String() string { return table[c].name }

// Retry says where another attempt may be made.
func (c Class) Retry() Retry { return table[c].retry }

// Code is the code of the answer to the client; empty for Success and ClientGone.
func (c Class) Code() apierr.Code { return table[c].code }

// Classes lists every class, for documentation, metrics and tests.
func Classes() []Class {
	all := make([]Class, classCount)
	for i := range all {
		all[i] = Class(i)
	}
	return all
}
