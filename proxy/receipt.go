package proxy

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/tidwall/gjson"

	"basegate/budget"
	apierr "basegate/errors"
	"basegate/receipt"
	"basegate/stream"
	"basegate/validate"
)

// receiptState is the receipt of a request that asked for one.
type receiptState struct {
	draft   *receipt.Draft
	sealed  *receipt.Sealed // nil before the answer is whole
	embed   bool            // onchain_data is the last member of a plain answer, or the last event of a stream
	reasons []string        // finish reasons of a plain answer
	first   []byte          // the head of a stream's chunks, as JSON members; nil before the first event, and if no event is to have it
}

// receiptRules adds to the rules of an endpoint that generates text, or estimates that, how a request asks for a receipt, and
// sets asked if it does: by header, by stream_options or in a dialect that always does.
func (s *Server) receiptRules(rules bodyRules, asked *bool) bodyRules {
	return func(x *exchange, body []byte) (*validate.Request, error) {
		r, err := rules(x, body)
		if err == nil {
			*asked, err = s.asksForReceipt(x, r)
		}
		return r, err
	}
}

func (s *Server) asksForReceipt(x *exchange, r *validate.Request) (asked bool, err error) {
	if values := x.r.Header[apierr.ReceiptHeader]; len(values) > 0 {
		if asked, err = parseReceiptHeader(values); err != nil {
			return false, err
		}
	}
	if s.receipts == nil && asked {
		return false, apierr.ReceiptsOff()
	}
	return s.receipts != nil && (asked || x.alwaysHasReceipt() || r.IncludeReceipt), nil
}

// alwaysHasReceipt reports whether the request is of a dialect whose responses carry their receipts.
func (x *exchange) alwaysHasReceipt() bool {
	return x.caller.dialect != nil && x.caller.dialect.Receipt
}

// beginReceipt begins the receipt of a request that has asked for one.
func (s *Server) beginReceipt(x *exchange) {
	// In a stream of the dialect too, the client has to ask for the event.
	embed := x.alwaysHasReceipt() && !x.request.Stream || x.request.IncludeReceipt
	x.receipt = &receiptState{draft: s.receipts.NewDraft(), embed: embed}
}

func parseReceiptHeader(values []string) (asked bool, err error) {
	value := strings.Join(values, ", ")
	switch {
	case strings.EqualFold(value, "true"):
		return true, nil
	case strings.EqualFold(value, "false"):
		return false, nil
	default:
		return false, apierr.InvalidReceiptHeader(value)
	}
}

// sealPlain makes the entry of a plain answer, which is the pieces, if a receipt was asked for.
func (x *exchange) sealPlain(p *response, pieces [][]byte) error {
	if x.receipt == nil {
		return nil
	}
	for _, piece := range pieces {
		x.receipt.draft.Write(piece)
	}
	reasons := x.receipt.reasons
	if p.bestOf == validate.EmulateBestOf { // of the choices that were chosen
		reasons = reasons[:0]
		for _, reason := range gjson.GetBytes(pieces[0], "choices.#.finish_reason").Array() {
			reasons = append(reasons, reason.Str)
		}
	}
	return x.seal(p.usage, reasons)
}

// seal makes the entry of an answer that is whole.
func (x *exchange) seal(usage stream.Usage, reasons []string) (err error) {
	x.receipt.sealed, err = x.receipt.draft.Seal(x.receiptEntry(usage, reasons), x.caller.identity.KeyID, x.body.bytes)
	if err != nil {
		return apierr.Unexpected(err)
	}
	return nil
}

// receiptEntry returns what the gateway knows of the answer.
func (x *exchange) receiptEntry(usage stream.Usage, reasons []string) receipt.Entry {
	parameters, also := x.request.Parameters()
	delete(parameters, "max_completion_tokens") // another name of max_tokens
	parameters["max_tokens"] = strconv.FormatInt(x.maxTokens(), 10)
	kind := receipt.Completion
	if x.isChat() {
		kind = receipt.ChatCompletion
	}
	b := x.attempts.backend
	return receipt.Entry{
		Kind: kind, Stream: x.request.Stream, RequestID: x.id, Model: x.model.ID(), Checkpoint: x.model.Checkpoint(),
		VLLMVersion: b.Version(), GPU: b.GPU, Parameters: parameters, Also: also, FinishReasons: reasons,
		Usage: receipt.Usage{PromptTokens: usage.Prompt, CompletionTokens: usage.Completion, TotalTokens: usage.Prompt + usage.Completion},
	}
}

// record lets a settlement insert the entry.
func (t *receiptState) record(o *budget.Outcome) {
	if t.sealed.Shared() {
		o.Receipt = t.sealed.Pending()
	} else {
		o.Record = t.sealed.Insert
	}
}

// withReceipt adds the receipt to a plain answer: the header, and onchain_data if it is to be in the body.
func (x *exchange) withReceipt(pieces [][]byte) ([][]byte, error) {
	if x.receipt == nil {
		return pieces, nil
	}
	x.w.Header().Set(apierr.ReceiptHeader, x.receipt.sealed.LeafHash().String())
	if !x.receipt.embed {
		return pieces, nil
	}
	onchain, err := x.onchainData()
	if err != nil {
		return nil, err
	}
	return appendMember(pieces, onchain), nil
}

func (x *exchange) onchainData() ([]byte, error) {
	data, err := json.Marshal(x.receipt.sealed.OnchainData())
	if err != nil {
		return nil, apierr.Unexpected(err)
	}
	return append([]byte(`"onchain_data":`), data...), nil
}

// appendMember adds a last member to a JSON object in pieces.
func appendMember(pieces [][]byte, member []byte) [][]byte {
	last := len(pieces) - 1
	end := bytes.LastIndexByte(pieces[last], '}')
	if end < 0 {
		return pieces
	}
	out := append([][]byte{}, pieces[:last]...)
	return append(out, pieces[last][:end], []byte(","), member, pieces[last][end:])
}

// addEvents adds events that the client receives to the answer of the receipt.
func (t *receiptState) addEvents(events []byte) {
	t.draft.WriteEvents(events)
	if t.first != nil || !t.embed {
		return
	}
	for payload := range stream.Payloads(events) {
		t.first = chunkHead(payload)
		break
	}
}

// chunkHead returns the members that all chunks of a stream have in common, each with a comma.
func chunkHead(payload []byte) []byte {
	head := []byte{}
	for _, name := range []string{"id", "object", "created", "model"} {
		if value := gjson.GetBytes(payload, name); value.Exists() {
			head = fmt.Appendf(head, "%q:%s,", name, value.Raw)
		}
	}
	return head
}

// streamReceipt returns what brings the receipt of a stream, whose charge is on disk: an event with onchain_data if it was
// asked for, and a comment with the whole receipt. The comment is one line, without a blank line behind it.
func (x *exchange) streamReceipt() ([]byte, error) {
	if x.receipt == nil {
		return nil, nil
	}
	var out []byte
	if x.receipt.embed {
		onchain, err := x.onchainData()
		if err != nil {
			return nil, err
		}
		out = fmt.Appendf(out, "data: {%s\"choices\":[],%s}\n\n", x.receipt.first, onchain)
	}
	whole, err := x.receipt.sealed.Receipt(x.r.Context())
	if err != nil {
		return nil, apierr.Unexpected(err)
	}
	text, err := whole.Encode()
	if err != nil {
		return nil, apierr.Unexpected(err)
	}
	return fmt.Appendf(out, ": receipt %s\n", text), nil
}
