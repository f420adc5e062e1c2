package fleet_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/poll"
)

// describedServer is a server that describes its requests.
type describedServer struct {
	*httptest.Server
	unhealthy        atomic.Bool
	asked, probes    atomic.Int64  // requests of /openapi.json and of /health
	held             atomic.Int64  // requests of /version that were left without an answer
	version, openAPI atomic.Value  // strings; the version "hold" is answered with nothing until the client has gone
	hold             chan struct{} // not nil: /openapi.json is answered when it is closed, or the client has gone
}

func newDescribedServer(t *testing.T, hold chan struct{}) *describedServer {
	t.Helper()
	s := &describedServer{hold: hold}
	s.version.Store(`{"version":"0.33.0"}`)
	s.openAPI.Store("")
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.unhealthy.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/health":
			s.probes.Add(1)
		case r.URL.Path == "/v1/models":
			io.WriteString(w, `{"data":[{"id":"org/M","max_model_len":100}]}`)
		case r.URL.Path == "/version" && s.version.Load() == "hold":
			s.held.Add(1)
			<-r.Context().Done()
		case r.URL.Path == "/version":
			io.WriteString(w, s.version.Load().(string))
		case r.URL.Path == "/openapi.json":
			s.asked.Add(1)
			if s.hold != nil {
				select {
				case <-s.hold:
				case <-r.Context().Done():
				}
			}
			if s.openAPI.Load() == "" {
				w.WriteHeader(http.StatusNotFound)
			}
			io.WriteString(w, s.openAPI.Load().(string))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// describes makes the server describe completions with these fields.
func (s *describedServer) describes(fields ...string) {
	s.openAPI.Store(fmt.Sprintf(`{"components":{"schemas":{"CompletionRequest":{"properties":{"%s":{}}}}}}`, strings.Join(fields, `":{},"`)))
}

// restart makes the server seem to have restarted to all of the backends.
func (s *describedServer) restart(t *testing.T, change func(), backends ...*fleet.Backend) {
	t.Helper()
	s.unhealthy.Store(true)
	for _, b := range backends {
		wantState(t, b, fleet.Unreachable)
	}
	change()
	s.unhealthy.Store(false)
	for _, b := range backends {
		wantState(t, b, fleet.Ready)
	}
}

// moreProbes waits for five more probes.
func (s *describedServer) moreProbes(t *testing.T) {
	t.Helper()
	before := s.probes.Load()
	poll.Until(t, "five more probes", func() bool { return s.probes.Load() >= before+5 })
}

func TestServerIsAskedOnceAtEveryBootWhatItServes(t *testing.T) {
	s := newDescribedServer(t, nil)
	s.describes("model", "prompt", "max_tokens")
	b := getModel(t, startFleet(t, modelConfig(t, "m", s.URL)), "m").Backends()[0]
	wantState(t, b, fleet.Ready)
	lacks := func(field string) bool { return strings.Contains(fmt.Sprint(b.Server().Undescribed(false)), field) }
	if !lacks("min_p") || lacks("max_tokens") || b.Server().Rust {
		t.Errorf("got %+v, want no min_p", b.Server())
	}
	s.restart(t, func() { s.describes("model", "prompt", "min_p") }, b)
	if lacks("min_p") || !lacks("max_tokens") {
		t.Errorf("after a restart: got %+v, want min_p and no max_tokens", b.Server())
	}
	s.restart(t, func() {
		s.openAPI.Store("")
		s.version.Store(`{"version":"0.33.0","rust_frontend_version":"0.33.0"}`)
	}, b)
	if lacks("max_tokens") || !b.Server().Rust {
		t.Errorf("with the Rust frontend: got %+v, want nothing described", b.Server())
	}
	s.restart(t, func() { s.version.Store(`{"version":"0.33.0"}`) }, b)
	if b.Server().Rust {
		t.Error("the Python frontend is taken for the Rust one")
	}
	s.moreProbes(t)
	if n := s.asked.Load(); n != 4 {
		t.Errorf("/openapi.json was requested %d times, want once at each of 4 boots", n)
	}
}

// probedBy returns the backend of a fleet with these settings.
func (s *describedServer) probedBy(t *testing.T, with fleet.Settings) *fleet.Backend {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	f := fleet.New([]config.Model{modelConfig(t, "m", s.URL)}, with, transport, nil, zap.NewNop())
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return getModel(t, f, "m").Backends()[0]
}

// A probe whose time /version has used up is no answer about the version, and does not ask what the server serves.
func TestServerIsAskedForItsVersionUntilItAnswers(t *testing.T) {
	s := newDescribedServer(t, nil)
	impatient := settings
	impatient.ProbeTimeout = 200 * time.Millisecond
	b := s.probedBy(t, impatient)
	wantState(t, b, fleet.Ready)
	s.restart(t, func() { s.version.Store("hold") }, b)
	poll.Until(t, "five probes without the version", func() bool { return s.held.Load() >= 5 })
	s.describes("model", "prompt")
	s.version.Store(`{"version":"0.34.0","rust_frontend_version":"0.34.0"}`)
	poll.Until(t, "the version of the restarted server", func() bool { return b.Server().Rust && b.Version() == "0.34.0" })
	poll.Until(t, "its description", func() bool { return b.Server().Undescribed(false) != nil })
}

// Only what it describes stays unknown of a server whose document does not come.
func TestServerIsReadyWithoutItsDescription(t *testing.T) {
	hold := make(chan struct{})
	s := newDescribedServer(t, hold)
	s.describes("model", "prompt")
	impatient := settings
	impatient.ProbeTimeout = 200 * time.Millisecond
	b := s.probedBy(t, impatient)
	poll.Until(t, "the server is ready and has been asked often enough", func() bool {
		state, _ := b.State()
		return state == fleet.Ready && s.asked.Load() >= 3
	})
	s.moreProbes(t)
	if got := b.Server().Undescribed(false); got != nil || b.Version() != "0.33.0" {
		t.Errorf("got version %q without %q, want 0.33.0 alone", b.Version(), got)
	}
	close(hold)
	s.restart(t, func() {}, b)
	poll.Until(t, "the description of the next boot", func() bool { return b.Server().Undescribed(false) != nil })
}

func TestFindingsSayWhatAServerCannotServe(t *testing.T) {
	s := newDescribedServer(t, nil)
	both, chats := modelConfig(t, "both", s.URL), modelConfig(t, "chats", s.URL)
	both.Chat, both.Completions, chats.Chat = true, true, true
	f := startFleet(t, modelConfig(t, "m", s.URL), both, chats)
	var all []*fleet.Backend
	for _, id := range []string{"m", "both", "chats"} {
		all = append(all, getModel(t, f, id).Backends()[0])
	}
	b := all[0]
	wantState(t, b, fleet.Ready)
	texts := func(model string) (all []string) {
		m := getModel(t, f, model)
		for _, f := range m.VersionFindings(m.Backends()[0]) {
			if strings.Contains(f.Text, "another backend of the model") {
				all = append(all, f.Text)
			}
		}
		return all
	}
	if got := texts("m"); got != nil {
		t.Errorf("got %q of a server that serves all", got)
	}
	const rest = " go to another backend of the model, and get 400 where there is none"
	s.restart(t, func() { s.version.Store(`{"version":"0.33.0","rust_frontend_version":"0.33.0"}`) }, all...)
	want := []string{"runs vLLM's Rust frontend, which takes one prompt (a string or an array of token ids) and n: 1 only; other requests" + rest}
	if diff := cmp.Diff(want, texts("m")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for body, want := range map[string]bool{`{"model":"m","prompt":"a","n":2}`: false, `{"model":"m","prompt":"a"}`: true, `{"model":"m"}`: true} {
		if got := b.Serves([]byte(body)); got != want {
			t.Errorf("%s: it is served: %t, want %t", body, got, want)
		}
	}
	for version, should := range map[string]string{"0.33.0": "vLLM 0.33", "0.1.dev1": ""} {
		s.restart(t, func() {
			s.version.Store(fmt.Sprintf(`{"version":%q}`, version))
			s.openAPI.Store(`{"components":{"schemas":{"CompletionRequest":{"properties":{"prompt":{}}},"ChatCompletionRequest":{"properties":{"messages":{}}}}}}`)
		}, all...)
		for model, requests := range map[string][]string{"m": {"completions"}, "both": {"completions", "chat completions"}, "chats": {"chat completions"}} {
			got := texts(model)
			if should == "" {
				requests = nil
			}
			if len(got) != len(requests) {
				t.Fatalf("%s, %s: got %q, want findings about %q", version, model, got, requests)
			}
			for i, text := range got {
				if !strings.HasPrefix(text, "its /openapi.json has no ") || !strings.HasSuffix(text, " of "+requests[i]+", which "+should+" should have; requests with them"+rest) {
					t.Errorf("%s, %s: got %q", version, model, text)
				}
			}
		}
	}
}
