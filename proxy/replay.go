package proxy

import (
	"net/http"
	"strconv"
	"time"

	"basegate/budget/receipt"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/proxy/replay"
	"basegate/proxy/stream"
)

// What X-Acs-Replay says in a response.
const (
	replayHit    = "hit"    // it is that of an earlier request
	replayMiss   = "miss"   // it is a new one, and was not kept, or is kept only after its end
	replayStored = "stored" // it is a new one, which is kept
)

// replayState is that of a request that asks for the response of an earlier one.
type replayState struct {
	refresh bool         // it asks for a new response in the place of the earlier one
	call    *replay.Call // nil before find
	leave   func()       // lets equal requests go on that wait for this one
	events  []byte       // of a stream so far
	tooMuch bool         // the events do not fit into memory, so the response is not kept
	result  string       // what the header says
	hit     *replay.Response
}

// beginReplay checks whether a request that asks for an earlier response may have one. An estimate, which has none, is refused like
// the request that it stands for.
func (x *exchange) beginReplay() error {
	if x.tokenizer() != nil {
		return nil
	}
	asked, refresh, err := apierr.AsksForReplay(x.r.Header)
	switch {
	case err != nil || !asked:
		return err
	case !x.settings.Replays && x.caller.line != nil: // since its batch was created
		return nil
	case !x.settings.Replays:
		return apierr.RefuseReplay(x.r.Header, "responses are not kept on this gateway (replay.enabled)")
	case x.caller.dialect != nil, x.caller.onBehalfOf != nil && x.caller.line == nil:
		return apierr.RefuseReplay(x.r.Header, "responses of this endpoint are not kept")
	case !x.request.Repeatable():
		return apierr.NotRepeatable()
	case x.endpoint == estimateEndpoint:
		return nil
	}
	x.replay = &replayState{refresh: refresh, leave: func() {}, result: replayMiss}
	return nil
}

// replayed sends the response of an earlier request, if this one asks for that and there is one. An equal request that runs on this
// gateway is awaited first, unless the client wants comments meanwhile.
func (s *Server) replayed(x *exchange) (sent bool, err error) {
	r := x.replay
	if r == nil {
		return false, nil
	}
	if err := x.memory.Grow(int64(len(x.asked().Body()))); err != nil {
		return false, bufferFull(err)
	}
	r.call, err = s.deps.Replays.NewCall(&replay.Request{
		Account: x.caller.identity.AccountID, Endpoint: x.r.URL.Path, Checkpoint: x.model.Checkpoint(), Adapter: adapterName(x.model),
		MaxTokens: x.asked().MaxTokens, Fields: x.asked().Fields(),
	})
	if err != nil {
		return false, apierr.Unexpected(err)
	}
	if r.refresh {
		return false, nil
	}
	if keepaliveOf(x.r) == 0 || !x.request.Stream {
		if r.leave, err = r.call.Lead(x.r.Context()); err != nil {
			return false, x.cancelErr()
		}
	}
	r.hit, err = r.call.Find(x.r.Context(), serversOf(x.model), x.memory.Grow)
	if err != nil {
		return false, bufferFull(err)
	}
	if r.hit == nil {
		return false, nil
	}
	r.leave()
	return true, s.sendReplayed(x)
}

// serversOf returns what has generated the responses of a model that may be replayed.
func serversOf(m *fleet.Model) (all []replay.Server) {
	for _, b := range m.Backends() {
		all = append(all, serverOf(b))
	}
	return all
}

func serverOf(b *fleet.Backend) replay.Server { return replay.Server{Version: b.Version(), GPU: b.GPU} }

func (x *exchange) leaveReplay() {
	if x.replay != nil {
		x.replay.leave()
	}
}

// sendReplayed sends the response of an earlier request after its row is on the ledger.
func (s *Server) sendReplayed(x *exchange) error {
	r, first := x.replay, x.replay.hit
	r.result = replayHit
	x.reservation = s.deps.Replayed.Admit(x.caller.payer, x.ledgerRequest(), first.PromptTokens+first.CompletionTokens, x.request.MaxTokens)
	defer x.reservation.Release()
	h := x.w.Header()
	h.Set("Age", strconv.FormatInt(max(int64(time.Since(first.Time)/time.Second), 0), 10))
	h.Set("X-Acs-Replay-Of", first.RequestID)
	if x.request.Stream {
		return s.sendReplayedStream(x)
	}
	pieces := withUser([][]byte{first.Body}, x.request)
	if x.receipt != nil {
		for _, piece := range pieces {
			x.receipt.builder.Write(piece)
		}
		if err := x.sealReplayed(finishReasons(first.Body)); err != nil {
			return err
		}
	}
	if err := x.settle(stream.Usage{Known: true}, http.StatusOK, ""); err != nil {
		return err
	}
	return s.sendPlain(x, first.ContentType, pieces)
}

// sendReplayedStream sends the events of an earlier stream, all at once.
func (s *Server) sendReplayedStream(x *exchange) error {
	first := x.replay.hit
	if x.receipt != nil {
		x.receipt.addEvents(first.Body)
		if err := x.sealReplayed(first.FinishReasons); err != nil {
			return err
		}
	}
	if err := x.settle(stream.Usage{Known: true}, http.StatusOK, ""); err != nil {
		return err
	}
	s.setHeaders(x, "")
	x.extendWriteDeadline()
	x.sendStreamHead(first.ContentType)
	if _, err := x.w.Write(first.Body); err != nil {
		return errClientGone
	}
	return x.endStream()
}

// sealReplayed makes the entry of a response that was replayed.
func (x *exchange) sealReplayed(reasons []string) error {
	r := x.generatedRecord(receipt.Replay, stream.Usage{}, reasons)
	r.ReplayOf = x.replay.hit.RequestID
	return x.sealRecord(r)
}

// collect adds events to the response that will be kept.
func (r *replayState) collect(x *exchange, events []byte) {
	const growth = 2 // of a slice that is appended to
	if r.tooMuch || x.memory.Grow(growth*int64(len(events))) != nil {
		r.tooMuch, r.events = true, nil
		return
	}
	r.events = append(r.events, events...)
}

func (r *replayState) collected() []byte {
	if r == nil {
		return nil
	}
	return r.events
}
