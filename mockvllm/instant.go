package mockvllm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// instantTokens is what an instant answer holds unless the request says how many.
const instantTokens = 16

// An instantAnswer is the same for every request, but for its length: what it costs is what a proxy's own cost is
// measured against.
type instantAnswer struct {
	event  []byte // a token
	last   []byte // the one with finish_reason
	prefix []byte // of the usage event and the plain answer
	limit  int    // of tokens
}

func newInstantAnswer(model string, limit int) *instantAnswer {
	head := appendString([]byte(`{"id":"cmpl-instant","object":"text_completion","created":1767225600,"model":`), model)
	event := func(finish string) []byte {
		return []byte("data: " + string(head) + `,"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":` +
			finish + `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}` + "\n\n")
	}
	return &instantAnswer{event: event("null"), last: event(`"length"`), prefix: head, limit: limit}
}

// instantDemand is what an instant answer heeds of a request.
type instantDemand struct {
	stream, usage bool
	tokens        int
}

func (a *instantAnswer) demand(body []byte) instantDemand {
	wanted := gjson.GetManyBytes(body, "stream", "max_tokens", "stream_options.include_usage")
	d := instantDemand{stream: wanted[0].Bool(), tokens: int(wanted[1].Int()), usage: wanted[2].Bool()}
	if d.tokens < 1 || d.tokens > a.limit {
		d.tokens = instantTokens
	}
	return d
}

// serve answers one request, and all that follow it on its connection where they can be answered at once.
func (a *instantAnswer) serve(x *exchange) {
	if x.readBody() != nil {
		x.closeConn()
		return
	}
	d := a.demand(x.body)
	delay := x.server.options.TokenDelay
	if delay == 0 && x.r.ProtoAtLeast(1, 1) && !x.r.Close && x.r.ContentLength >= 0 {
		if conn, buffered, err := http.NewResponseController(x.w).Hijack(); err == nil {
			defer context.AfterFunc(x.r.Context(), func() { _ = conn.Close() })() // it is closed either way
			defer conn.Close()
			a.converse(conn, buffered.Reader, d)
			return
		}
	}
	if !d.stream {
		x.writeJSON(a.plain(nil, d.tokens))
		return
	}
	x.w.Header().Set("Content-Type", eventStreamType)
	x.w.WriteHeader(http.StatusOK)
	for i := range d.tokens {
		if _, err := x.w.Write(a.nth(i, d.tokens)); err != nil {
			return
		}
		if delay > 0 && (http.NewResponseController(x.w).Flush() != nil || pause(x.r.Context(), delay) != nil) {
			return
		}
	}
	_, _ = x.w.Write(a.end(nil, d)) // a client that left needs no answer
}

// nth is the event of a stream's i-th token.
func (a *instantAnswer) nth(i, tokens int) []byte {
	if i == tokens-1 {
		return a.last
	}
	return a.event
}

// end appends what comes behind a stream's tokens.
func (a *instantAnswer) end(to []byte, d instantDemand) []byte {
	if d.usage {
		to = append(append(append(to, "data: "...), a.prefix...), `,"choices":[],`...)
		to = append(a.usage(to, d.tokens), "}\n\n"...)
	}
	return append(to, doneEvent...)
}

// converse answers request after request with as little work as can be: net/http would take more of the machine than the
// proxy that is measured. A request for anything else, or of a length that nobody says, ends the connection.
func (a *instantAnswer) converse(conn net.Conn, from *bufio.Reader, d instantDemand) {
	var answer, body []byte
	for {
		if !d.stream {
			body = a.plain(body[:0], d.tokens)
			answer = fmt.Appendf(answer[:0], "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			if _, err := conn.Write(answer); err != nil {
				return
			}
		} else if a.burst(conn, d) != nil {
			return
		}
		var err error
		if body, err = readInstantBody(from, body[:0]); err != nil {
			return
		}
		d = a.demand(body)
	}
}

// burstChunk is how much of a stream goes out at a time, in bytes: what net/http's buffer holds.
const burstChunk = 4 << 10

// burst sends a whole stream.
func (a *instantAnswer) burst(conn net.Conn, d instantDemand) error {
	var events []byte
	for i := range d.tokens {
		events = append(events, a.nth(i, d.tokens)...)
	}
	events = a.end(events, d)
	out := []byte("HTTP/1.1 200 OK\r\nContent-Type: " + eventStreamType + "\r\nTransfer-Encoding: chunked\r\n\r\n")
	for piece := range slices.Chunk(events, burstChunk) {
		out = fmt.Appendf(out, "%x\r\n%s\r\n", len(piece), piece)
		if _, err := conn.Write(out); err != nil {
			return err
		}
		out = out[:0]
	}
	_, err := io.WriteString(conn, "0\r\n\r\n")
	return err
}

var errNotInstant = errors.New("not a completion request whose length is known")

// readInstantBody reads a request for a completion, and of its head only the length.
func readInstantBody(from *bufio.Reader, body []byte) ([]byte, error) {
	line, err := from.ReadSlice('\n')
	if err != nil || !bytes.HasPrefix(line, []byte("POST "+completionsPath+" ")) {
		return nil, errors.Join(err, errNotInstant)
	}
	length := -1
	for {
		line, err := from.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		name, value, found := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		if !found {
			break
		}
		if strings.EqualFold(string(name), "Content-Length") {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return nil, err
			}
		}
	}
	if length < 0 || length > maxBody {
		return nil, errNotInstant
	}
	body = slices.Grow(body, length)[:length]
	_, err = io.ReadFull(from, body)
	return body, err
}

// plain appends a plain answer.
func (a *instantAnswer) plain(to []byte, tokens int) []byte {
	to = append(append(to, a.prefix...), `,"choices":[{"index":0,"text":"`...)
	for range tokens {
		to = append(to, " word"...)
	}
	to = append(to, `","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_logprobs":null}],`...)
	return append(a.usage(to, tokens), '}')
}

func (*instantAnswer) usage(to []byte, tokens int) []byte {
	to = append(to, `"usage":{"prompt_tokens":6,"total_tokens":`...)
	to = strconv.AppendInt(to, int64(6+tokens), 10)
	to = append(to, `,"completion_tokens":`...)
	return append(strconv.AppendInt(to, int64(tokens), 10), '}')
}
