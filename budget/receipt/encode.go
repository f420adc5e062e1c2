package receipt

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// encoder writes JSON without spaces in the order of its calls. Each answer with a receipt has its entry and its receipt
// encoded while its client waits, and to encode by reflection takes twice as long.
type encoder struct {
	text []byte
	err  error // of the first string that is not UTF-8
}

// result returns what was encoded, of a kind of document.
func (e *encoder) result(kind string) ([]byte, error) {
	if e.err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind, e.err)
	}
	return e.text, nil
}

// raw appends JSON as it is.
func (e *encoder) raw(text string) { e.text = append(e.text, text...) }

func (e *encoder) string(s string) {
	var err error
	if e.text, err = jsontext.AppendQuote(e.text, s); err != nil && e.err == nil {
		e.err = err
	}
}

func (e *encoder) strings(list []string) {
	e.raw("[")
	for i, s := range list {
		if i > 0 {
			e.raw(",")
		}
		e.string(s)
	}
	e.raw("]")
}

func (e *encoder) hash(h *Hash) {
	e.raw(`"`)
	e.text = hex.AppendEncode(e.text, h[:])
	e.raw(`"`)
}

func (e *encoder) number(n int64) { e.text = strconv.AppendInt(e.text, n, 10) }

// entryBytes is more than most entries take, and receiptBytes what a receipt takes beside its entry with a proof of 20 hashes.
const (
	entryBytes   = 1280
	receiptBytes = 2048
)

// encode returns the canonical form of the entry.
func (e *Entry) encode() ([]byte, error) {
	w := encoder{text: make([]byte, 0, entryBytes)}
	w.raw(`{"version":`)
	w.number(int64(e.Version))
	w.raw(`,"kind":`)
	w.string(e.Kind)
	w.raw(`,"stream":`)
	w.text = strconv.AppendBool(w.text, e.Stream)
	w.raw(`,"time":`)
	w.string(e.Time)
	w.raw(`,"request_id":`)
	w.string(e.RequestID)
	w.raw(`,"key_id_sha256":`)
	w.hash(&e.KeyHash)
	w.raw(`,"model":`)
	w.string(e.Model)
	w.raw(`,"checkpoint":`)
	w.string(e.Checkpoint)
	w.raw(`,"vllm_version":`)
	w.string(e.VLLMVersion)
	w.raw(`,"gpu":`)
	w.string(e.GPU)
	w.raw(`,"parameters":{`)
	for i, name := range slices.Sorted(maps.Keys(e.Parameters)) {
		if i > 0 {
			w.raw(",")
		}
		w.string(name)
		w.raw(":")
		w.string(e.Parameters[name])
	}
	w.raw(`},"also":`)
	w.strings(e.Also)
	w.raw(`,"input_cid":`)
	w.string(e.InputCID)
	w.raw(`,"output_cid":`)
	w.string(e.OutputCID)
	w.raw(`,"usage":{"prompt_tokens":`)
	w.number(e.Usage.PromptTokens)
	w.raw(`,"completion_tokens":`)
	w.number(e.Usage.CompletionTokens)
	w.raw(`,"total_tokens":`)
	w.number(e.Usage.TotalTokens)
	w.raw(`},"finish_reasons":`)
	w.strings(e.FinishReasons)
	w.raw("}")
	return w.result("entry")
}

// Encode returns the receipt as one line of JSON.
func (r *Receipt) Encode() ([]byte, error) { return r.Append(nil) }

// Append appends the receipt to dst as Encode returns it.
func (r *Receipt) Append(dst []byte) ([]byte, error) {
	w := encoder{text: slices.Grow(dst, receiptBytes+len(r.canonical))}
	w.raw(`{"object":`)
	w.string(r.Object)
	w.raw(`,"leaf_hash":`)
	w.hash(&r.LeafHash)
	w.raw(`,"log":`)
	w.string(r.Log)
	if r.Entry != nil {
		entry := r.canonical
		if entry == nil {
			var err error
			if entry, err = r.Entry.encode(); err != nil {
				return nil, err
			}
		}
		w.raw(`,"entry":`)
		w.text = append(w.text, entry...)
	}
	if r.Nonce != nil {
		w.raw(`,"nonce":`)
		w.hash(r.Nonce)
	}
	if r.LeafIndex != nil {
		w.raw(`,"leaf_index":`)
		w.number(*r.LeafIndex)
	}
	if r.Proof != nil {
		w.raw(`,"inclusion_proof":[`)
		for i := range *r.Proof {
			if i > 0 {
				w.raw(",")
			}
			w.hash(&(*r.Proof)[i])
		}
		w.raw("]")
	}
	if r.Checkpoint != "" {
		w.raw(`,"checkpoint":`)
		w.string(r.Checkpoint)
	}
	w.raw("}")
	return w.result("receipt")
}
