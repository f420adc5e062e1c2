package receipt

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"
	"golang.org/x/mod/sumdb/tlog"

	"basegate/proxy/stream"
)

// The reasons why a receipt does not prove an answer.
var (
	ErrNoEntry    = errors.New("the receipt has no entry and no nonce: get the whole one at GET /receipts/{leaf hash}?nonce=1 with the key that made the request")
	ErrNoProof    = errors.New("the receipt has no proof, because it was given before the log had signed a tree with its entry: get it again at GET /receipts/{leaf hash}?nonce=1")
	ErrOtherLog   = errors.New("the receipt is of another log than the key's")
	ErrEntry      = errors.New("the entry was changed: its hash is not the receipt's leaf_hash")
	ErrNotInLog   = errors.New("the entry is not in the log: the inclusion proof does not lead from it to the root hash of the tree head")
	ErrRequest    = errors.New("the request is not the one of the receipt, or its nonce was changed: it has another CID than the entry's input_cid")
	ErrAnswer     = errors.New("the answer is not the one of the receipt: it has another CID than the entry's output_cid")
	ErrLine       = errors.New("the answer has a line that is neither data nor a comment of a stream, which no receipt covers: give the payloads of the events alone, joined by line feeds")
	ErrOnchain    = errors.New("the onchain_data in the answer is not that of the receipt")
	errNewVersion = errors.New("the entry has a version that this program does not know; use a newer one")
)

// Verify checks that the receipt proves that this request got this answer, by a log with the given verifier key; an empty
// one stands for the key that the receipt itself names. The answer is the body, or of a stream either what was received,
// line by line, or the payloads of its events joined by line feeds.
func (r *Receipt) Verify(request, answer []byte, vkey string) error {
	switch {
	case r.Entry == nil || r.Nonce == nil:
		return ErrNoEntry
	case r.Checkpoint == "":
		return ErrNoProof
	case vkey != "" && vkey != r.Log:
		if _, err := parseKey(vkey); err != nil {
			return err
		}
		return fmt.Errorf("%w: it names %s", ErrOtherLog, r.Log)
	}
	if err := r.verifyInclusion(); err != nil {
		return err
	}
	if r.Entry.Version != recordVersion {
		return errNewVersion
	}
	if cidOf(*r.Nonce, request) != r.Entry.InputCID {
		return ErrRequest
	}
	return r.verifyAnswer(answer)
}

// verifyInclusion checks that the log of r.Log has the entry.
func (r *Receipt) verifyInclusion() error {
	verifier, err := parseKey(r.Log)
	if err != nil {
		return err
	}
	text, err := r.Entry.encode()
	if err != nil {
		return err
	}
	if Hash(tlog.RecordHash(text)) != r.LeafHash {
		return ErrEntry
	}
	head, err := openCheckpoint(r.Checkpoint, verifier)
	if err != nil {
		return fmt.Errorf("check tree head: %w", err)
	}
	if tlog.CheckRecord(r.recordProof(), head.Size, head.Root, *r.LeafIndex, tlog.Hash(r.LeafHash)) != nil {
		return ErrNotInLog
	}
	return nil
}

// verifyAnswer checks the answer in each form in which a client may have kept it.
func (r *Receipt) verifyAnswer(answer []byte) error {
	if cidOf(*r.Nonce, answer) == r.Entry.OutputCID {
		return nil
	}
	contents, onchain := withoutOnchain(answer)
	received := false
	if r.Entry.Stream {
		contents, onchain, received = joinPayloads(answer)
	}
	switch {
	case cidOf(*r.Nonce, contents) != r.Entry.OutputCID:
		return ErrAnswer
	case received && hasOtherLines(answer):
		return ErrLine
	case onchain != nil:
		return r.verifyOnchain(onchain)
	default:
		return nil
	}
}

// hasOtherLines reports whether a stream has lines that are neither empty nor data nor comments, or a comment that a parser,
// for which a lone CR ends a line, reads as more than that.
func hasOtherLines(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		isComment := bytes.HasPrefix(line, []byte(":")) && bytes.IndexByte(line, '\r') < 0
		if len(line) > 0 && !isComment && !bytes.HasPrefix(line, []byte("data:")) {
			return true
		}
	}
	return false
}

// verifyOnchain checks the JSON of the member onchain_data of an answer.
func (r *Receipt) verifyOnchain(raw []byte) error {
	verifier, err := parseKey(r.Log)
	if err != nil {
		return err
	}
	var got OnchainData
	want := newOnchainData(r.Entry, r.LeafHash, keyID(verifier))
	if json.Unmarshal(raw, &got, json.RejectUnknownMembers(true)) != nil || !reflect.DeepEqual(got, want) {
		return ErrOnchain
	}
	return nil
}

// joinPayloads returns the payloads of a stream that the entry's address is of, and the onchain_data of its last event if
// there is one. Text that was not received as a stream is taken for payloads that are joined already.
func joinPayloads(text []byte) (joined, onchain []byte, received bool) {
	var payloads [][]byte
	for payload := range stream.Payloads(text) {
		payloads = append(payloads, payload)
	}
	if len(payloads) == 0 {
		return bytes.TrimSuffix(text, []byte("\n")), nil, false
	}
	if n := len(payloads) - 1; string(payloads[n]) == "[DONE]" {
		payloads = payloads[:n]
	}
	if n := len(payloads) - 1; n > 0 {
		// An event that has anything else is left in: it is no part of what the gateway adds.
		without, found := withoutOnchain(payloads[n])
		if found != nil && string(without) == "{"+string(EventHead(payloads[0]))+emptyChoices+"}" {
			payloads, onchain = payloads[:n], found
		}
	}
	return bytes.Join(payloads, []byte("\n")), onchain, true
}

// withoutOnchain returns a JSON object without its last member if that is onchain_data, and the value of that member.
func withoutOnchain(object []byte) (without, onchain []byte) {
	d := jsontext.NewDecoder(bytes.NewReader(object))
	if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
		return object, nil
	}
	for {
		end := d.InputOffset() // of the member before, or of the brace
		if comma := bytes.IndexByte(object[end:], ','); comma >= 0 && len(bytes.TrimSpace(object[end:][:comma])) == 0 {
			end += int64(comma) // the spaces before it are the answer's
		}
		name, err := d.ReadToken()
		if err != nil || name.Kind() != '"' {
			return object, nil
		}
		last := name.String() == onchainMember
		value, err := d.ReadValue()
		if err != nil {
			return object, nil
		}
		onchain = bytes.Clone(value) // which the next call of the decoder may overwrite
		if last && d.PeekKind() == '}' {
			return append(bytes.Clone(object[:end]), object[d.InputOffset():]...), onchain
		}
	}
}

const (
	onchainMember = "onchain_data"
	emptyChoices  = `"choices":[]`
)

// EventHead returns the members that all events of a stream have in common, each with a comma, from one of its payloads.
func EventHead(payload []byte) []byte {
	head := []byte{}
	for _, name := range []string{"id", "object", "created", "model"} {
		if value := gjson.GetBytes(payload, name); value.Exists() {
			head = fmt.Appendf(head, "%q:%s,", name, value.Raw)
		}
	}
	return head
}

// OnchainEvent returns the event that brings the JSON of onchain_data, of a stream whose events have a head in common.
func OnchainEvent(head, onchain []byte) []byte {
	return fmt.Appendf(nil, "data: {%s%s,%q:%s}\n\n", head, emptyChoices, onchainMember, onchain)
}
