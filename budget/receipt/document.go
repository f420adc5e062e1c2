package receipt

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"golang.org/x/mod/sumdb/tlog"
)

// objectName is the Object of every Receipt.
const objectName = "receipt"

// Receipt is the document that proves an entry of the log. Entry and Nonce are for the key that made the request.
type Receipt struct {
	Object   string  `json:"object"` // objectName
	LeafHash Hash    `json:"leaf_hash"`
	Log      string  `json:"log"` // its verifier key
	Entry    *Record `json:"entry,omitzero"`
	Nonce    *Hash   `json:"nonce,omitzero"`

	// The proof that the entry is in the log. All are absent from a receipt that was given before the log had signed a tree
	// with the entry.
	LeafIndex  *int64  `json:"leaf_index,omitzero"`
	Proof      *[]Hash `json:"inclusion_proof,omitzero"`
	Checkpoint string  `json:"checkpoint,omitzero"` // the signed tree head
}

// maxReceipt limits a receipt that is parsed, in bytes.
const maxReceipt = 1 << 20

var (
	errTooLong   = errors.New("it is longer than any receipt")
	errNoReceipt = errors.New("its \"object\" is not \"receipt\"")
	errHalfProof = errors.New("leaf_index, inclusion_proof and checkpoint must be there together, or none of them")
)

// Parse parses a receipt. It accepts any spaces, but no unknown, repeated or missing member.
func Parse(data []byte) (*Receipt, error) {
	if len(data) > maxReceipt {
		return nil, fmt.Errorf("parse receipt: %w", errTooLong)
	}
	data = bytes.TrimPrefix(data, []byte(": receipt ")) // the comment of a stream
	var r Receipt
	if err := json.Unmarshal(data, &r, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("parse receipt: %w", err)
	}
	proven := r.Checkpoint != ""
	switch {
	case r.Object != objectName:
		return nil, fmt.Errorf("parse receipt: %w", errNoReceipt)
	case (r.LeafIndex != nil) != proven, (r.Proof != nil) != proven:
		return nil, fmt.Errorf("parse receipt: %w", errHalfProof)
	}
	return &r, nil
}

// Encode returns the receipt as one line of JSON.
func (r *Receipt) Encode() ([]byte, error) {
	text, err := json.Marshal(r, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode receipt: %w", err)
	}
	return text, nil
}

// addProof adds the proof that the entry is in a tree.
func (r *Receipt) addProof(index int64, proof tlog.RecordProof, checkpoint string) {
	hashes := make([]Hash, len(proof))
	for i, h := range proof {
		hashes[i] = Hash(h)
	}
	r.LeafIndex, r.Proof, r.Checkpoint = &index, &hashes, checkpoint
}

// recordProof returns the proof in the form of package tlog.
func (r *Receipt) recordProof() tlog.RecordProof {
	hashes := make(tlog.RecordProof, len(*r.Proof))
	for i, h := range *r.Proof {
		hashes[i] = tlog.Hash(h)
	}
	return hashes
}
