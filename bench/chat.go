package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// chatFigures compare chat completions with completions of the same size, through one gateway.
type chatFigures struct{ plain, stream pair }

// pair holds the CPU time of the gateway per request in µs, round by round.
type pair struct{ completions, chat []float64 }

// ratio summarises the cost of a chat completion over that of a completion.
func (p pair) ratio() summary { return summarize(ratios(p.chat, p.completions)) }

// String returns the medians, that of chat first.
func (p pair) String() string {
	completion, chat := summarize(p.completions), summarize(p.chat)
	return fmt.Sprintf("%s µs, a completion %s", chat.text(digitsOf(chat)), completion.text(digitsOf(completion)))
}

// String returns the figures as a sentence.
func (f *chatFigures) String() string {
	return fmt.Sprintf("CPU per request: a chat completion of four messages, 1 KB together, takes %s; a chat stream of %d events takes %s", f.plain, chatEvents, f.stream)
}

const (
	chatConnections = 32
	chatEvents      = 200
)

var errChatLoad = errors.New("the gateway truncated or failed a request")

// measureChat sends chat completions and completions of the same size through one gateway in turns. Each round begins with
// the other of the two, so that other activity on the machine affects both alike.
func measureChat(ctx context.Context, o options) (f *chatFigures, err error) {
	b, err := newTestbed(o.programs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.addUpstream(ctx); err != nil {
		return nil, err
	}
	t, _, err := b.startGatewayOf(ctx, gatewayOptions{name: gateway, program: o.programs.basegate, concurrency: unlimited, chat: true})
	if err != nil {
		return nil, err
	}
	f = &chatFigures{}
	for round := range o.rounds {
		for _, kind := range []struct {
			to     *pair
			events int
		}{{&f.plain, 0}, {&f.stream, chatEvents}} {
			for i := range 2 {
				w, to := completionLoad(kind.events), &kind.to.completions
				if (i+round)%2 == 1 {
					w, to = chatLoad(kind.events), &kind.to.chat
				}
				fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, o.rounds, w.name)
				m, err := measure(ctx, t, w, o.span)
				if err != nil {
					return nil, err
				}
				if m.truncated+m.failed > 0 || m.complete == 0 {
					return nil, fmt.Errorf("%s: %w: %w", w.name, errChatLoad, m.exampleErr)
				}
				*to = append(*to, cpuPerRequest.value(sample{m: m}))
			}
		}
	}
	return f, nil
}

// turn is a quarter of the text of both loads, which is 1 KB.
var turn = strings.Repeat("word ", 1<<10/4/5)

func completionLoad(events int) workload {
	return loadOf("completions", completionsPath, fmt.Sprintf(`{"model": %q, "prompt": %q`, model, strings.Repeat(turn, 4)), events)
}

// chatLoad asks for the next turn of a conversation.
func chatLoad(events int) workload {
	var messages []string
	for _, role := range []string{"system", "user", "assistant", "user"} {
		messages = append(messages, fmt.Sprintf(`{"role": %q, "content": %q}`, role, turn))
	}
	w := loadOf("chat completions", chatPath, fmt.Sprintf(`{"model": %q, "messages": [%s]`, model, strings.Join(messages, ", ")), events)
	if events > 0 {
		w.events++ // the first event has the role
	}
	return w
}

// loadOf returns a load of plain requests, or of streams of that many events.
func loadOf(name, path, body string, events int) workload {
	if events == 0 {
		body += `, "max_tokens": 16}`
	} else {
		name = "streams of " + name
		body += fmt.Sprintf(`, "max_tokens": %d, "stream": true, "ignore_eos": true}`, events)
	}
	return workload{name: name, connections: chatConnections, events: events, path: path, body: []byte(body)}
}
