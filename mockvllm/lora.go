package mockvllm

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

const (
	maxLoRARank  = 16  // --max-lora-rank
	adapterShare = 9   // how much more likely an adapter makes its token than all others together
	bytePieces   = 256 // tokens of single bytes, before those of words
)

type adapter struct {
	name, path string
	token      int // that its weights prefer
}

// adapterSet holds the adapters in the order in which they were loaded.
type adapterSet struct {
	mu     sync.Mutex
	loaded []*adapter
}

// find returns nil if no adapter has the name.
func (s *adapterSet) find(name string) *adapter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.loaded, func(a *adapter) bool { return a.name == name }); i >= 0 {
		return s.loaded[i]
	}
	return nil
}

// put adds an adapter, or replaces the one of its name.
func (s *adapterSet) put(a *adapter) {
	s.remove(a.name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = append(s.loaded, a)
}

func (s *adapterSet) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = slices.DeleteFunc(s.loaded, func(a *adapter) bool { return a.name == name })
}

func (s *adapterSet) list() []*adapter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.loaded)
}

func (s *adapterSet) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = nil
}

// loraRequest is the body of both endpoints.
type loraRequest struct {
	Name    string `json:"lora_name"`
	Path    string `json:"lora_path"`
	InPlace bool   `json:"load_inplace"`
}

// invalidUserInput is the type of errors that only these endpoints have.
const invalidUserInput = "InvalidUserInput"

func (s *Server) loadAdapter(x *exchange) *failure {
	var r loraRequest
	failure := s.decodeBody(x, &r)
	switch {
	case failure != nil:
		return failure
	case r.Name == "" || r.Path == "":
		return newFailure(http.StatusBadRequest, invalidUserInput, "Both 'lora_name' and 'lora_path' must be provided.")
	case !r.InPlace && s.adapters.find(r.Name) != nil:
		return newFailure(http.StatusBadRequest, invalidUserInput,
			"The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.", r.Name)
	}
	a, failure := s.readAdapter(&r)
	if failure != nil {
		return failure
	}
	s.adapters.put(a)
	x.writeResponse(http.StatusOK, "", fmt.Appendf(nil, "Success: LoRA adapter '%s' added successfully.", r.Name))
	return nil
}

// readAdapter reads the files of an adapter. Those that are there decide which token it prefers.
func (s *Server) readAdapter(r *loraRequest) (*adapter, *failure) {
	text, err := os.ReadFile(filepath.Join(r.Path, "adapter_config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, newFailure(http.StatusNotFound, notFoundError, "Loading lora %s failed: No adapter found for %s", r.Name, r.Path)
	}
	var settings struct {
		Rank int `json:"r"`
	}
	if err != nil || json.Unmarshal(text, &settings) != nil {
		return nil, internalError("Call to add_lora method failed: Expecting value: line 1 column 1 (char 0)")
	}
	if settings.Rank > maxLoRARank {
		return nil, internalError(fmt.Sprintf("Call to add_lora method failed: LoRA rank %d is greater than max_lora_rank %d.", settings.Rank, maxLoRARank))
	}
	weights, err := os.ReadFile(filepath.Join(r.Path, "adapter_model.safetensors"))
	if err != nil {
		return nil, internalError(fmt.Sprintf("Call to add_lora method failed: %s doesn't contain tensors", r.Path))
	}
	words := s.model.bos - bytePieces
	return &adapter{r.Name, r.Path, bytePieces + int(crc32.ChecksumIEEE(weights)%uint32(words))}, nil
}

func (s *Server) unloadAdapter(x *exchange) *failure {
	var r loraRequest
	failure := s.decodeBody(x, &r)
	switch {
	case failure != nil:
		return failure
	case r.Name == "":
		return newFailure(http.StatusBadRequest, invalidUserInput, "'lora_name' needs to be provided to unload a LoRA adapter.")
	case s.adapters.find(r.Name) == nil:
		return newFailure(http.StatusNotFound, notFoundError, "The lora adapter '%s' cannot be found.", r.Name)
	}
	s.adapters.remove(r.Name)
	x.writeResponse(http.StatusOK, "", fmt.Appendf(nil, "Success: LoRA adapter '%s' removed successfully.", r.Name))
	return nil
}

// predict is languageModel.predict with the adapter of the request.
func (g *generation) predict(history []int) {
	g.model.predict(history, g.probabilities)
	if g.adapter == nil {
		return
	}
	for id := range g.probabilities {
		g.probabilities[id] /= 1 + adapterShare
	}
	g.probabilities[g.adapter.token] += float64(adapterShare) / (1 + adapterShare)
}

// cacheSalt tells apart blocks of the prefix cache. As in vLLM those of an adapter have its name, so that they outlive it.
func (g *generation) cacheSalt() string {
	if g.adapter == nil {
		return g.request.CacheSalt
	}
	return g.request.CacheSalt + "/" + g.adapter.name
}
