package mockvllm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"
)

// cudaOutOfMemory is PyTorch's message when the GPU's memory is exhausted.
const cudaOutOfMemory = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of " +
	"which 1.62 GiB is free. Including non-PyTorch memory, this process has 77.48 GiB memory in use. Of the allocated " +
	"memory 74.91 GiB is allocated by PyTorch, and 1.07 GiB is reserved by PyTorch but unallocated. If reserved but " +
	"unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."

// busyFaults are the messages of a healthy engine that takes no request for now, and "code" if it is not the status.
var busyFaults = map[string]struct{ message, code string }{
	faultOverloaded: {"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.", ""},
	faultBacklog:    {"The engine has reached its prefill token backlog limit. Please try again later or on a different instance.", ""},
	faultPaused:     {"Generation is paused. Please retry after it resumes.", "engine_paused"},
}

// applyFault writes the fault's response in place of the server's. It returns false if the fault applies inside
// the response.
func (s *Server) applyFault(x *exchange) bool {
	if x.fault.Kind != faultSlow {
		if err := pause(x.r.Context(), x.fault.Delay); err != nil {
			x.closeConn()
			return true
		}
	}
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
	status := cmp.Or(f.Status, http.StatusInternalServerError)
	usual := &failure{status: status, errorType: internalServerError, message: message}
	switch f.Kind {
	case faultError:
		return &failure{status: status, raw: &f.Body, contentType: cmp.Or(f.ContentType, "application/json")}
	case faultNested:
		return usual.inErrorShape(nestedErrors)
	case faultFlat:
		return usual.inErrorShape(flatErrors)
	case faultString:
		return stringFailure(cmp.Or(f.Status, http.StatusServiceUnavailable),
			cmp.Or(f.Message, "The model is currently scaling. Please try again later."))
	case faultDetail:
		return detailFailure(cmp.Or(f.Status, http.StatusBadRequest), cmp.Or(f.Message, "There was an error parsing the body"))
	case faultEmpty:
		empty := ""
		return &failure{status: status, raw: &empty}
	case faultText:
		return textFailure(status, cmp.Or(f.Message, internalSpaced))
	case faultOKError:
		wrapped := usual.inErrorShape(nestedErrors)
		wrapped.status = http.StatusOK
		return wrapped
	case faultContext:
		return s.contextFailure(f)
	case faultOverloaded, faultBacklog, faultPaused:
		return &failure{
			status: cmp.Or(f.Status, http.StatusServiceUnavailable), errorType: s.spec.busyType,
			message: cmp.Or(f.Message, busyFaults[f.Kind].message), code: busyFaults[f.Kind].code,
		}
	case faultOOM, faultEngineDead:
		return s.engineFailure(f)
	}
	return nil
}

// inErrorShape encodes the failure in an error shape other than the version's.
func (f *failure) inErrorShape(shape errorShape) *failure {
	body := string((&versionSpec{errors: shape}).errorBody(f))
	return &failure{status: f.status, message: f.message, raw: &body, contentType: "application/json"}
}

// contextFailure is the response to a request that is too long, in the wording that the fault selects.
func (s *Server) contextFailure(f *Fault) *failure {
	m := contextCounts{
		limit: s.maxModelLen, prompt: s.maxModelLen, completion: 16, characters: s.maxModelLen * (s.longestPiece + 1),
		maxCharacters: (s.maxModelLen - 16) * s.longestPiece, maxPrompt: s.maxModelLen - 16,
	}
	number := f.Wording
	if number == 0 {
		spec := s.spec
		if f.Version != "" {
			named := specOf(parseRelease(f.Version))
			spec = &named
		}
		number = map[contextRule]int{
			contextRequested: wordingRequested, contextTooLarge: wordingTooLarge, contextOutputTokens: wordingOutput,
			contextClamped: wordingPromptOver,
		}[spec.context]
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
	if f.Kind == faultEngineDead {
		s.engine.kill(f)
	}
	failure := s.spec.deadEngineFailure()
	if f.Kind == faultOOM {
		failure.message, failure.raw, failure.asOK = cudaOutOfMemory, nil, failure.asOK && f.Status == 0
	}
	failure.status = cmp.Or(f.Status, failure.status)
	if f.Message != "" {
		failure.message, failure.raw = f.Message, nil
	}
	return failure
}

// corruptBody applies the kinds of fault that replace or inflate a plain body.
func (x *exchange) corruptBody(body []byte) []byte {
	switch {
	case x.hasFault(faultGarbage):
		return []byte(cmp.Or(x.fault.Body, "<html>\x00\xff this is neither JSON nor an event </html>"))
	case x.hasFault(faultBigEvent):
		return x.fault.padText(body)
	}
	return body
}

// padText pads the first text of a response until the whole has the fault's length.
func (f *Fault) padText(data []byte) []byte {
	const text = `"text":"`
	missing := cmp.Or(f.Bytes, defaultBigEventBytes) - len(data)
	if missing <= 0 || !bytes.Contains(data, []byte(text)) {
		return data
	}
	return bytes.Replace(data, []byte(text), []byte(text+strings.Repeat("x", missing)), 1)
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
