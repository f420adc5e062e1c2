package receipt

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json"
)

// FuzzEncode compares the encoder with that of the JSON library, by which readers understand receipts.
func FuzzEncode(f *testing.F) {
	f.Add("m", "temperature", "0.7", "stop", int64(3), true)
	f.Add("ü\u2028\x00\"\\/<&>", "", "\t\n", "\U0001F600", int64(-1), false)
	f.Add("\xff", "a", "b", "", int64(1)<<62, false)
	f.Fuzz(func(t *testing.T, text, name, value, list string, n int64, whole bool) {
		e := &Entry{
			Version: int(n), Kind: text, Stream: whole, Time: value, RequestID: name, KeyHash: hashOfKeyID(text), Model: text, Checkpoint: list,
			VLLMVersion: value, GPU: name, Parameters: map[string]string{name: value, "max_tokens": "1", "a" + name: text},
			InputCID: text, OutputCID: value, Usage: Usage{n, n + 1, n + 2}, FinishReasons: []string{list},
		}
		r := &Receipt{Object: objectName, LeafHash: hashOfKeyID(name), Log: text}
		if whole {
			e.Also = []string{list, text}
			proof := []Hash{r.LeafHash, e.KeyHash}[:n&1+1]
			r.Entry, r.Nonce, r.LeafIndex, r.Proof, r.Checkpoint = e, &r.LeafHash, &n, &proof, value
		}
		want, wantErr := json.Marshal(e, json.Deterministic(true))
		if got, err := e.encode(); (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got, want) {
			t.Errorf("entry: got %s, error %v, want %s, error %v", got, err, want, wantErr)
		}
		want, wantErr = json.Marshal(r, json.Deterministic(true))
		if got, err := r.Encode(); (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got, want) {
			t.Errorf("receipt: got %s, error %v, want %s, error %v", got, err, want, wantErr)
		}
	})
}
