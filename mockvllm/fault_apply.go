package mockvllm

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
)

// cudaOutOfMemory is PyTorch's message when the GPU's memory is exhausted.
const cudaOutOfMemory = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of " +
	"which 1.62 GiB is free. Including non-PyTorch memory, this process has 77.48 GiB memory in use. Of the allocated " +
	"memory 74.91 GiB is allocated by PyTorch, and 1.07 GiB is reserved by PyTorch but unallocated. If reserved but " +
	"unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."

// applyFault writes the fault's response in place of the server's. It returns false if the fault applies inside
// the response.
func (s *Server) applyFault(x *exchange) bool {
	switch x.fault.Kind {
	case faultReset:
		x.resetConn()
		return true
	case faultHang:
		return !x.fault.isMidStream() && s.hang(x) != nil
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

// failureFor returns the error response of the fault, or nil if its kind has none or applies inside a stream.
func (s *Server) failureFor(f *Fault) *failure {
	message := cmp.Or(f.Message, "Something went wrong on purpose.")
	usual := internalError(message)
	usual.status = cmp.Or(f.Status, usual.status)
	switch f.Kind {
	case faultError:
		return &failure{status: usual.status, raw: &f.Body, contentType: "application/json"}
	case faultNested:
		return usual.inErrorShape(true)
	case faultFlat:
		return usual.inErrorShape(false)
	case faultText:
		return textFailure(usual.status, cmp.Or(f.Message, internalSpaced))
	case faultOKError:
		wrapped := usual.inErrorShape(true)
		wrapped.status = http.StatusOK
		return wrapped
	case faultContext:
		return s.contextFailure(f)
	case faultOverloaded:
		return &failure{
			status: cmp.Or(f.Status, http.StatusServiceUnavailable), errorType: s.spec.BusyType, message: cmp.Or(f.Message,
				"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."),
		}
	case faultOOM, faultEngineDead:
		return s.engineFailure(f)
	}
	return nil
}

// inErrorShape encodes the failure in an error shape other than the version's.
func (f *failure) inErrorShape(nested bool) *failure {
	body := string((&versionSpec{Nested: nested}).errorBody(f))
	return &failure{status: f.status, raw: &body, contentType: "application/json"}
}

// contextFailure is the response to a request that is too long, in the wording that the fault selects.
func (s *Server) contextFailure(f *Fault) *failure {
	m := contextCounts{
		limit: s.maxModelLen, prompt: s.maxModelLen, completion: 16, characters: s.maxModelLen * (s.longestPiece + 1),
		maxCharacters: (s.maxModelLen - 16) * s.longestPiece, maxPrompt: s.maxModelLen - 16,
	}
	number := f.Wording
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
	failure := invalidParam("input_tokens", "%s", cmp.Or(f.Message, contextMessage(number, m))).withValue(m.prompt)
	failure.status = cmp.Or(f.Status, failure.status)
	return failure
}

// engineFailure returns the error of an engine that runs out of memory or dies before the response begins, or nil for
// faults inside a stream. It also kills the engine if that is the fault.
func (s *Server) engineFailure(f *Fault) *failure {
	if f.isMidStream() {
		return nil
	}
	failure := s.spec.deadEngine()
	if f.Kind == faultEngineDead {
		s.engine.kill()
	} else {
		failure.message, failure.raw = cudaOutOfMemory, nil
	}
	failure.status = cmp.Or(f.Status, failure.status)
	if f.Message != "" {
		failure.message, failure.raw = f.Message, nil
	}
	return failure
}

// serveControl serves the mock's own endpoints: faults and recorded requests.
func (s *Server) serveControl(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "POST /mock/fault":
		var f Fault
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxFaultBodySize)).Decode(&f); err != nil {
			writeControlJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		s.faults.add(f)
		writeControlJSON(w, http.StatusOK, s.faults.list())
	case "GET /mock/fault":
		writeControlJSON(w, http.StatusOK, s.faults.list())
	case "DELETE /mock/fault":
		s.ClearFaults()
		writeControlJSON(w, http.StatusOK, s.faults.list())
	case "GET /mock/requests":
		writeControlJSON(w, http.StatusOK, s.Requests())
	default:
		writeControlJSON(w, http.StatusNotFound, map[string]string{
			"error": "here are POST, GET and DELETE /mock/fault, and GET /mock/requests",
		})
	}
}

func writeControlJSON(w http.ResponseWriter, status int, content any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(content) // fails only if the client disconnected
}
