package receipt

import "testing"

// Receipts that clients keep are verified by the canonical form for ever.
func TestCanonicalFormStaysAsItIs(t *testing.T) {
	r := &Record{
		Version: 1, Kind: Completion, Stream: true, Time: "2026-01-02T03:04:05.6Z", RequestID: "req_\u00fc\u2028\x00\"\\/<&>\t", KeyHash: Hash{0xab},
		Model: "m", Checkpoint: "org/m", Parameters: map[string]string{"top_p": "1", "max_tokens": "16", "n": "1"},
		InputCID: "ipfs://a", OutputCID: "ipfs://b", Usage: Usage{1, 2, 3}, FinishReasons: []string{"stop", "length"},
	}
	const want = `{"version":1,"kind":"completion","stream":true,"time":"2026-01-02T03:04:05.6Z","request_id":"req_ü` +
		"\u2028" + `\u0000\"\\/<&>\t","key_id_sha256":"ab00000000000000000000000000000000000000000000000000000000000000","model":"m",` +
		`"checkpoint":"org/m","vllm_version":"","gpu":"","parameters":{"max_tokens":"16","n":"1","top_p":"1"},"also":[],` +
		`"input_cid":"ipfs://a","output_cid":"ipfs://b","usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3},"finish_reasons":["stop","length"]}`
	if got, err := r.encode(); err != nil || string(got) != want {
		t.Errorf("got %s, error %v, want %s", got, err, want)
	}
	if _, err := (&Record{Model: "\xff"}).encode(); err == nil {
		t.Error("a text that is not UTF-8 is encoded")
	}
}

func TestReceiptStaysAsItIs(t *testing.T) {
	index, proof := int64(3), []Hash{{1}}
	const zeros = "00000000000000000000000000000000000000000000000000000000000000"
	for want, r := range map[string]*Receipt{
		`{"object":"receipt","leaf_hash":"02` + zeros + `","log":"l","nonce":"03` + zeros + `","leaf_index":3,"inclusion_proof":["01` + zeros + `"],"checkpoint":"c\n"}`: {
			Object: objectName, LeafHash: Hash{2}, Log: "l", Nonce: &Hash{3}, LeafIndex: &index, Proof: &proof, Checkpoint: "c\n",
		},
		`{"object":"receipt","leaf_hash":"02` + zeros + `","log":"l","leaf_index":3,"inclusion_proof":[],"checkpoint":"c"}`: {
			Object: objectName, LeafHash: Hash{2}, Log: "l", LeafIndex: &index, Proof: &[]Hash{}, Checkpoint: "c",
		},
		`{"object":"receipt","leaf_hash":"02` + zeros + `","log":"l"}`: {Object: objectName, LeafHash: Hash{2}, Log: "l"},
	} {
		if got, err := r.Encode(); err != nil || string(got) != want {
			t.Errorf("got %s, error %v, want %s", got, err, want)
		}
	}
}
