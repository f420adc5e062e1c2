package proxy

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/tidwall/gjson"

	"basegate/budget/receipt"
	apierr "basegate/errors"
	"basegate/proxy/replay"
	"basegate/proxy/stream"
	"basegate/validate"
)

// receiptState is the receipt of a request that asked for one.
type receiptState struct {
	builder *receipt.Builder
	entry   *receipt.Entry // nil before the response is whole
	embed   bool           // onchain_data is the last member of a plain response, or the last event of a stream
	first   []byte         // the head of a stream's chunks, as JSON members; nil before the first event, and if no event is to have it
}

// beginReceipt begins the receipt of a request that asks for one: by header, by stream_options or in a dialect that always does.
func (s *Server) beginReceipt(x *exchange) error {
	if s.deps.Receipts == nil {
		return apierr.RefuseReceipt(x.r.Header, "receipts are not enabled on this gateway")
	}
	asked, err := apierr.AsksForReceipt(x.r.Header)
	if err != nil || !asked && !x.alwaysHasReceipt() && !x.request.IncludeReceipt {
		return err
	}
	// In a stream of the dialect too, the client has to ask for the event.
	embed := x.alwaysHasReceipt() && !x.request.Stream || x.request.IncludeReceipt
	x.receipt = &receiptState{builder: s.deps.Receipts.NewBuilder(x.request.Stream), embed: embed}
	return nil
}

// endReceipt lets the entries of other streams be numbered without waiting for that of this request.
func (x *exchange) endReceipt() {
	if x.receipt != nil {
		x.receipt.builder.Close()
	}
}

// alwaysHasReceipt reports whether the request is of a dialect whose responses carry their receipts.
func (x *exchange) alwaysHasReceipt() bool {
	return x.caller.dialect != nil && x.caller.dialect.Receipt
}

// sealPlain makes the entry of a plain response, which is the pieces, if a receipt was asked for.
func (x *exchange) sealPlain(p *response, pieces [][]byte) error {
	if x.receipt == nil {
		return nil
	}
	for _, piece := range pieces {
		x.receipt.builder.Write(piece)
	}
	reasons := x.charge.reasons
	if p.bestOf == validate.EmulateBestOf { // of the choices that were chosen
		reasons = finishReasons(pieces[0])
	}
	return x.seal(p.usage, reasons)
}

// seal makes the entry of a generated response that is whole.
func (x *exchange) seal(usage stream.Usage, reasons []string) error {
	kind := receipt.Completion
	switch {
	case x.isChat():
		kind = receipt.ChatCompletion
	case x.scoring != nil:
		kind = receipt.Loglikelihood
	}
	return x.sealRecord(x.generatedRecord(kind, usage, reasons))
}

// generatedRecord returns what the gateway knows of a generated response that was charged.
func (x *exchange) generatedRecord(kind string, usage stream.Usage, reasons []string) receipt.Record {
	r := x.receiptRecord(kind)
	delete(r.Parameters, "max_completion_tokens") // another name of max_tokens
	r.Parameters["max_tokens"] = strconv.FormatInt(x.maxTokens(), 10)
	r.Stream, r.FinishReasons, r.Adapter = x.request.Stream, reasons, adapterName(x.serving())
	r.Usage = receipt.Usage{PromptTokens: usage.Prompt, CompletionTokens: usage.Completion, TotalTokens: usage.Prompt + usage.Completion}
	return r
}

// receiptRecord returns what the gateway knows of any response of a backend.
func (x *exchange) receiptRecord(kind string) receipt.Record {
	parameters, also := x.asked().Parameters()
	var server replay.Server
	if x.replay != nil && x.replay.hit != nil {
		server = x.replay.hit.Server
	} else {
		server = serverOf(x.attempts.backend)
	}
	return receipt.Record{
		Kind: kind, RequestID: x.id, Model: x.model.ID(), Checkpoint: x.model.Checkpoint(),
		VLLMVersion: server.Version, GPU: server.GPU, Parameters: parameters, Also: also,
	}
}

func (x *exchange) sealRecord(r receipt.Record) (err error) {
	x.receipt.entry, err = x.receipt.builder.Seal(r, x.caller.identity.KeyID, x.asked().Body())
	if err != nil {
		return apierr.Unexpected(err)
	}
	return nil
}

// receiptTimeout limits how long a response that costs nothing waits for its entry; nothing is lost if the client asks again.
const receiptTimeout = 10 * time.Second

// writeReceipt writes the entry of a response that costs nothing, if a receipt was asked for, and waits until it is on
// disk. If the client leaves while the entry is queued, it is not written.
func (x *exchange) writeReceipt(kind string, body []byte) error {
	if x.receipt == nil {
		return nil
	}
	x.receipt.builder.Write(body)
	if err := x.sealRecord(x.receiptRecord(kind)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), receiptTimeout)
	defer cancel()
	err := x.receipt.entry.Write(ctx)
	switch {
	case err != nil && x.cancelled():
		return x.cancelErr()
	case err != nil:
		return ledgerUnavailable(err)
	}
	x.setReceiptHeader()
	return nil
}

func (x *exchange) setReceiptHeader() {
	x.w.Header().Set(apierr.ReceiptHeader, x.receipt.entry.LeafHash().String())
}

func (x *exchange) onchainData() ([]byte, error) {
	data, err := json.Marshal(x.receipt.entry.OnchainData())
	if err != nil {
		return nil, apierr.Unexpected(err)
	}
	return data, nil
}

// addEvents adds events that the client receives to the response of the receipt.
func (t *receiptState) addEvents(events []byte) {
	t.builder.WriteEvents(events)
	if t.first != nil || !t.embed {
		return
	}
	for payload := range stream.Payloads(events) {
		t.first = receipt.EventHead(payload)
		break
	}
}

// streamReceipt returns what brings the receipt of a stream, whose charge is on disk: an event with onchain_data if it
// was asked for, and a comment with the whole receipt. The comment is one line, without a blank line behind it.
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
		out = receipt.OnchainEvent(x.receipt.first, onchain)
	}
	whole, err := x.receipt.entry.Receipt(x.r.Context()).Encode()
	if err != nil {
		return nil, apierr.Unexpected(err)
	}
	return fmt.Appendf(out, ": receipt %s\n", whole), nil
}

// finishReasons returns those of the choices of a plain response.
func finishReasons(body []byte) (reasons []string) {
	for _, reason := range gjson.GetBytes(body, "choices.#.finish_reason").Array() {
		reasons = append(reasons, reason.Str)
	}
	return reasons
}
