package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// post sends a request and returns the response's body and Content-Type.
func post(t *testing.T, c *http.Client, url, body string) (text, contentType string) {
	t.Helper()
	resp, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(content), resp.Header.Get("Content-Type")
}

// startReplayer returns the URLs of a replayer and of its mock, which net/http serves.
func startReplayer(t *testing.T, o childOptions) (p *replayer, replayed, original string) {
	t.Helper()
	o.Listen = "127.0.0.1:0"
	ctx, cancel := context.WithCancel(t.Context())
	p, err := newReplayer(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- p.serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(p.mock)
	t.Cleanup(server.Close)
	return p, "http://" + p.listener.Addr().String(), server.URL
}

func TestReplayedResponsesEqualTheMocks(t *testing.T) {
	for _, o := range []childOptions{{}, {Pace: time.Millisecond}} {
		_, url, original := startReplayer(t, o)
		keeping := &http.Client{Transport: &http.Transport{}}
		defer keeping.CloseIdleConnections()
		for _, body := range []string{
			`{"prompt":"x","max_tokens":3}`,
			`{"prompt":"x","max_tokens":100,"stream":true}`,
			`{"prompt":"x"}`,
			`{"prompt":"x","max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`,
		} {
			want, wantType := post(t, keeping, original+completionsPath, body)
			for range 2 { // recorded, and replayed
				got, gotType := post(t, keeping, url+completionsPath, body)
				if diff := cmp.Diff(want, got); diff != "" || gotType != wantType {
					t.Errorf("%s: got Content-Type %q, want %q, body (-want +got):\n%s", body, gotType, wantType, diff)
				}
			}
		}
	}
}

// A held stream is complete for the client whenever it is released.
func TestHeldStreamsRepeatAnEventUntilTheirRelease(t *testing.T) {
	p, url, _ := startReplayer(t, childOptions{Pace: time.Millisecond, Held: true})
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, body := range []string{`{"prompt":"x","max_tokens":4096,"stream":true}`, `{"prompt":"x","max_tokens":4096,"stream":true,"stream_options":{"include_usage":true}}`} {
		open := p.open.Load()
		time.AfterFunc(20*time.Millisecond, func() { p.release <- struct{}{} })
		text, _ := post(t, c, url+completionsPath, body)
		events := strings.Count(text, "\n\n")
		if p.open.Load() != open+1 || events < 4 || events > 1000 || strings.Count(text, `"finish_reason":"length"`) != 1 || !strings.HasSuffix(text, string(doneEvent)) {
			t.Errorf("%s: got %d events: %.2000s", body, events, text)
		}
	}
}

// The mock's own responses to a chat completion differ by their ids and texts.
func TestChatCompletionsAreReplayedBesideCompletions(t *testing.T) {
	_, url, _ := startReplayer(t, childOptions{})
	keeping := &http.Client{Transport: &http.Transport{}}
	defer keeping.CloseIdleConnections()
	for body, object := range map[string]string{
		`{"messages":[{"role":"user","content":"x"}],"max_tokens":2}`:               `"object":"chat.completion"`,
		`{"messages":[{"role":"user","content":"x"}],"max_tokens":2,"stream":true}`: `"object":"chat.completion.chunk"`,
	} {
		first, _ := post(t, keeping, url+chatPath, body)
		if completion, _ := post(t, keeping, url+completionsPath, `{"prompt":"x","max_tokens":2}`); !strings.Contains(completion, `"object":"text_completion"`) {
			t.Errorf("a completion got %s", completion)
		}
		second, _ := post(t, keeping, url+chatPath, body)
		if diff := cmp.Diff(first, second); diff != "" || !strings.Contains(first, object) {
			t.Errorf("%s: got %s, want a recorded response with %s (-first +second):\n%s", body, first, object, diff)
		}
	}
}

// A probe that finds its connection closed would take the backend out of service, and stall the load.
func TestReplayerServesProbesOnTheConnectionsOfCompletions(t *testing.T) {
	_, url, _ := startReplayer(t, childOptions{})
	dials := 0
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dials++
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}}
	defer c.CloseIdleConnections()
	for range 3 {
		if text, _ := post(t, c, url+completionsPath, `{"prompt":"x"}`); !strings.Contains(text, "choices") {
			t.Errorf("got %s, want a completion", text)
		}
		for _, path := range []string{"/health", "/metrics"} {
			resp, err := c.Get(url + path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(io.Discard, resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("%s: got %d, %v, want 200", path, resp.StatusCode, err)
			}
		}
	}
	if dials != 1 {
		t.Errorf("got %d connections, want 1", dials)
	}
}
