package receipt

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/mod/sumdb/tlog"
)

// recordVersion is the Version of the entries that this package makes.
const recordVersion = 1

// Kinds of a Record.
const (
	Completion     = "completion"
	ChatCompletion = "chat.completion"
	Loglikelihood  = "loglikelihood"
	Tokenization   = "tokenization"
	Detokenization = "detokenization"
	Replay         = "replay" // of a completion or chat completion
)

// Record is what an entry of the log says of one request and its answer. It has no text of either. Its canonical form is JSON
// without spaces, in the order of the fields; parameters are strings, so that no reader changes their digits.
type Record struct {
	Version       int               `json:"version"`
	Kind          string            `json:"kind"`
	Stream        bool              `json:"stream"`
	Time          string            `json:"time"` // when the answer was whole, RFC 3339 in UTC
	RequestID     string            `json:"request_id"`
	ReplayOf      string            `json:"replay_of,omitempty"` // of a Replay: the request that the answer was generated for
	KeyHash       Hash              `json:"key_id_sha256"`
	Model         string            `json:"model"`
	Checkpoint    string            `json:"checkpoint"`
	Adapter       string            `json:"adapter,omitempty"` // id@version of the LoRA adapter; empty if the request used none
	VLLMVersion   string            `json:"vllm_version"`      // empty if the backend does not report it
	GPU           string            `json:"gpu"`               // the backend's label; empty if it has none
	Parameters    map[string]string `json:"parameters"`        // numbers and booleans as sent to the backend
	Also          []string          `json:"also"`              // further parameters of the request, whose values may be texts
	InputCID      string            `json:"input_cid"`
	OutputCID     string            `json:"output_cid"`
	Usage         Usage             `json:"usage"`
	FinishReasons []string          `json:"finish_reasons"` // of each choice; none of the tokenizer

	text []byte // the canonical form, once Builder.Seal has encoded it
}

// Usage is what the request was charged, in tokens. The tokenizer is free.
type Usage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
}

// hashOfKeyID returns how an entry names a key.
func hashOfKeyID(id string) Hash { return sha256.Sum256([]byte(id)) }

// MarshalJSONTo implements json.MarshalerTo, so that a Receipt does not encode its entry again.
func (r *Record) MarshalJSONTo(to *jsontext.Encoder) error {
	if r.text != nil {
		return to.WriteValue(r.text)
	}
	type plain Record
	return json.MarshalEncode(to, (*plain)(r))
}

// encode returns the canonical form. The names of parameters are ASCII, which json.Deterministic sorts by their bytes.
func (r *Record) encode() ([]byte, error) {
	text, err := json.Marshal(r, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode entry: %w", err)
	}
	return text, nil
}

// Backend names what has generated the answer.
func (r *Record) Backend() string {
	parts := []string{"model=" + r.Model, "checkpoint=" + r.Checkpoint}
	if r.Adapter != "" {
		parts = append(parts, "adapter="+r.Adapter)
	}
	if r.VLLMVersion != "" {
		parts = append(parts, "vllm="+r.VLLMVersion)
	}
	if r.GPU != "" {
		parts = append(parts, "gpu="+r.GPU)
	}
	return strings.Join(parts, ";")
}

// OnchainData is the part of a receipt that an answer carries in its body. The names are those of EternalAI's API.
type OnchainData struct {
	AssignmentAddresses []string `json:"assignment_addresses"` // what has generated the answer
	PBFTCommittee       []string `json:"pbft_committee"`       // empty: no committee votes on entries
	Proposer            string   `json:"proposer"`             // the id of the log's key
	InferTx             Hash     `json:"infer_tx"`             // the leaf hash, as the two below
	ProposeTx           Hash     `json:"propose_tx"`
	SubmitTx            Hash     `json:"submit_tx"`
	InputCID            string   `json:"input_cid"`
	OutputCID           string   `json:"output_cid"`
}

func newOnchainData(r *Record, leaf Hash, proposer string) OnchainData {
	return OnchainData{
		AssignmentAddresses: []string{r.Backend()}, PBFTCommittee: []string{}, Proposer: proposer,
		InferTx: leaf, ProposeTx: leaf, SubmitTx: leaf, InputCID: r.InputCID, OutputCID: r.OutputCID,
	}
}

// Hash is 32 bytes, written as 64 hexadecimal digits in lower case.
type Hash tlog.Hash

var errHash = errors.New("want 64 hexadecimal digits in lower case")

// ParseHash parses a Hash, which may have EternalAI's prefix "0x".
func ParseHash(s string) (Hash, error) {
	var h Hash
	err := h.UnmarshalText([]byte(strings.TrimPrefix(s, "0x")))
	return h, err
}

// String returns the hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText implements encoding.TextMarshaler.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler. Upper case is an error, so that each hash has one form.
func (h *Hash) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(h)) || strings.ContainsAny(string(text), "ABCDEF") {
		return errHash
	}
	if _, err := hex.Decode(h[:], text); err != nil {
		return errHash
	}
	return nil
}
