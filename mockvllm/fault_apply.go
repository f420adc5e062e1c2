package mockvllm

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
)

const cudaOutOfMemory = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of " +
	"which 1.62 GiB is free. Including non-PyTorch memory, this process has 77.48 GiB memory in use. Of the allocated " +
	"memory 74.91 GiB is allocated by PyTorch, and 1.07 GiB is reserved by PyTorch but unallocated. If reserved but " +
	"unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."

const busyEngine = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."

// applyFault writes the fault's response in place of the server's. It returns false if the fault applies inside
// the response.
func (s *Server) applyFault(x *exchange) bool {
	switch f := x.fault; f.Kind {
	case faultReset:
		x.resetConn()
		return true
	case faultHang:
		return !f.isMidStream() && s.hang(x) != nil
	case faultErrorEvent:
		return false
	case faultOOM, faultEngineDead:
		if f.isMidStream() {
			return false
		}
	}
	failure := s.failureFor(x.fault)
	if failure != nil {
		x.writeFailure(failure)
	}
	return failure != nil
}

// hang blocks until the client disconnects. If the faults are cleared first, it returns nil and the request continues
// normally.
func (*Server) hang(x *exchange) error {
	select {
	case <-x.r.Context().Done():
		x.closeConn()
		return context.Cause(x.r.Context())
	case <-x.faultsCleared:
		return nil
	}
}

// failureFor returns the error response of the fault, or nil if its kind has none. It kills the engine if that is the fault.
func (s *Server) failureFor(f *Fault) *failure {
	usual := f.worded(internalError("Something went wrong on purpose."))
	switch f.Kind {
	case faultError:
		return rawFailure(usual.status, jsonType, f.Body)
	case faultNested:
		return usual.inErrorShape(usual.status, true)
	case faultFlat:
		return usual.inErrorShape(usual.status, false)
	case faultOKError:
		return usual.inErrorShape(http.StatusOK, true)
	case faultText:
		return textFailure(usual.status, cmp.Or(f.Message, internalSpaced))
	case faultContext:
		return f.worded(s.contextFailure(f.Wording))
	case faultOverloaded:
		return f.worded(&failure{status: http.StatusServiceUnavailable, errorType: s.spec.BusyType, message: busyEngine})
	case faultOOM:
		return f.worded(internalError(cudaOutOfMemory))
	case faultEngineDead:
		s.engine.dead.Store(true)
		return f.worded(s.spec.deadEngine())
	case faultErrorEvent:
		return f.worded(internalError("Internal server error"))
	}
	return nil
}

// worded gives an error the status and the message that the fault has, if any.
func (f *Fault) worded(failure *failure) *failure {
	failure.status = cmp.Or(f.Status, failure.status)
	if f.Message != "" {
		failure.message, failure.raw = f.Message, nil
	}
	return failure
}

// inErrorShape encodes the failure in an error shape that need not be the version's.
func (f *failure) inErrorShape(status int, nested bool) *failure {
	return rawFailure(status, jsonType, string((&versionSpec{Nested: nested}).errorBody(f)))
}

// contextFailure is the response to a request that is too long, in the wording of this number, or the version's for 0.
func (s *Server) contextFailure(number int) *failure {
	limit := s.options.MaxModelLen
	m := contextCounts{
		limit: limit, prompt: limit, completion: 16, characters: limit * (s.longestPiece + 1),
		maxCharacters: (limit - 16) * s.longestPiece, maxPrompt: limit - 16,
	}
	switch {
	case number > 0:
	case s.spec.V0:
		number = wordingRequested
	case s.spec.Clamps:
		number = wordingPromptOver
	default:
		number = wordingTooLarge
	}
	if number >= wordingMaxTokensClamped {
		m.prompt++ // these versions reject only a prompt that is longer than the context
	}
	return invalidParam("input_tokens", "%s", contextMessage(number, m)).withValue(m.prompt)
}

// serveControl serves the mock's own endpoints: faults and recorded requests.
func (s *Server) serveControl(w http.ResponseWriter, r *http.Request) {
	var content any
	status := http.StatusOK
	switch r.Method + " " + r.URL.Path {
	case "POST /mock/fault":
		var f Fault
		decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxFaultBodySize))
		decoder.DisallowUnknownFields()
		if err := cmp.Or(decoder.Decode(&f), f.validate()); err != nil {
			status, content = http.StatusBadRequest, map[string]string{"error": err.Error()}
			break
		}
		s.faults.add(f)
		content = s.faults.list()
	case "GET /mock/fault":
		content = s.faults.list()
	case "DELETE /mock/fault":
		s.ClearFaults()
		content = s.faults.list()
	case "GET /mock/requests":
		content = s.Requests()
	default:
		status, content = http.StatusNotFound, map[string]string{"error": "here are POST, GET and DELETE /mock/fault, and GET /mock/requests"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(content) // fails only if the client disconnected
}
