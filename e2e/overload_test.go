//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"basegate/internal/poll"
)

// greedyBackend is a backend whose responses are as large as the gateway takes them, and whose tokenizer never responds.
func greedyBackend(t *testing.T) string {
	t.Helper()
	long := strings.Repeat("x", 1<<20)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/v1/models":
			fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"max_model_len":4096}]}`, checkpoint)
		case r.URL.Path == "/tokenize" && len(body) > 4096:
			<-r.Context().Done()
		case r.URL.Path == "/tokenize":
			io.WriteString(w, `{"count":1,"max_model_len":4096,"tokens":[1]}`)
		case r.URL.Path != "/v1/completions":
		case strings.Contains(string(body), "legitimate"):
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
		case strings.Contains(string(body), `"stream":true`):
			w.Header().Set("Content-Type", "text/event-stream")
			for i := 1_000_000; i > 0 && r.Context().Err() == nil; i-- {
				fmt.Fprintf(w, `data: {"choices":[{"index":%d,"text":"a","finish_reason":null}]}`+"\n\n", i)
			}
		default:
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"choices":[{"index":0,"text":"`)
			for range 1500 {
				if _, err := io.WriteString(w, long); err != nil {
					return
				}
			}
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// hostileBodies returns the bodies of requests that take much memory, by what takes it.
func hostileBodies() map[string]string {
	var names strings.Builder
	names.WriteString(`{"model":"m","prompt":"a"`)
	for i := 0; names.Len() < 15<<20; i++ {
		fmt.Fprintf(&names, `,"%d":0`, i)
	}
	return map[string]string{
		"names of members":    names.String() + "}",
		"members of a field":  `{"model":"m","prompt":"a","logit_bias":` + strings.TrimPrefix(names.String(), `{"model":"m","prompt":"a",`) + "}}",
		"a plain response":    `{"model":"m","prompt":"a"}`,
		"choices of a stream": `{"model":"m","stream":true,"prompt":[` + strings.Repeat(`"a",`, 1<<20) + `"a"]}`,
		"texts to be counted": `{"model":"m","prompt":[` + strings.Repeat(`"a",`, 1<<20) + `"a"]}`,
		"a text to count":     `{"model":"m","prompt":"` + strings.Repeat("a ", 5<<20) + `"}`,
		"token ids":           `{"model":"m","prompt":[[` + strings.Repeat("1,", 5<<20) + `1]]}`,
		"escaped texts":       `{"model":"m","prompt":["` + strings.Repeat(`\u0061`, 1<<20) + `"]}`,
	}
}

// Clients send everything that takes memory at once. The gateway stays near GOMEMLIMIT, and serves another key.
func TestMemoryStaysNearItsLimitUnderAttack(t *testing.T) {
	const limit = 512 << 20
	useBinaryWithoutRaceDetector(t)
	t.Setenv("GOMEMLIMIT", fmt.Sprint(limit))
	env := newEnvironment(t, settings{extra: "limits: {concurrency_per_key: 1000}"}, greedyBackend(t))
	other, uploads := env.createKey("other"), env.createKey("uploads")
	large, small := env.createKey("large bodies"), env.createKey("small bodies")
	keys := map[bool]string{true: large, false: small}
	g := env.serve()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	statuses := map[string]map[int]int{}
	var mu sync.Mutex
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(name, secret string, body io.Reader, length int) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/completions", body)
		if err != nil {
			t.Error(err)
			return
		}
		req.ContentLength = int64(length)
		req.Header.Set("Authorization", "Bearer "+secret)
		status := 0
		if resp, err := client.Do(req); err == nil {
			status = resp.StatusCode
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		mu.Lock()
		defer mu.Unlock()
		if statuses[name] == nil {
			statuses[name] = map[int]int{}
		}
		statuses[name][status]++
	}
	var attacks sync.WaitGroup
	for name, body := range hostileBodies() {
		for range 24 {
			all.Add(1)
			counted := !strings.Contains(name, "count") // those end with the test
			if counted {
				attacks.Add(1)
			}
			go func() {
				defer all.Done()
				send(name, keys[len(body)>>20 > 0], strings.NewReader(body), len(body))
				if counted {
					attacks.Done()
				}
			}()
		}
	}
	unfinished := make([]byte, 9<<20)
	for range 100 { // uploads that do not end
		body, writer := io.Pipe()
		context.AfterFunc(ctx, func() { body.Close() })
		all.Go(func() { send("unfinished upload", uploads, body, 10<<20) })
		all.Go(func() { writer.Write(unfinished) })
	}
	attacks.Wait()
	served := g.post(other, `{"model":"m","prompt":"legitimate `+strings.Repeat("x", 100)+`"}`)
	if served != http.StatusOK {
		t.Errorf("the other key got %d during the attack, want 200", served)
	}
	cancel()
	all.Wait()
	peak, current := g.resident()
	t.Logf("%d MiB resident, peak %d MiB; responses by status: %v", current>>20, peak>>20, statuses)
	if peak > limit*14/10 {
		t.Errorf("the peak was %d MiB resident, want at most 1.4 times %d MiB", peak>>20, limit>>20)
	}
}

// post sends a completion request over a new connection and returns the status.
func (g *gateway) post(secret, body string) int {
	g.t.Helper()
	return g.send(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, http.MethodPost, "/v1/completions", secret, body)
}

// send sends a request and returns the status, or 0 if no response comes.
func (g *gateway) send(c *http.Client, method, path, secret, body string) int {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.t.Context(), method, g.url+path, strings.NewReader(body))
	if err != nil {
		g.t.Error(err)
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := c.Do(req)
	if err != nil {
		g.t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// limitOpenFiles makes a test run the binary with a limit of open files.
func limitOpenFiles(t *testing.T, limit int) {
	t.Helper()
	original := binary
	t.Cleanup(func() { binary = original })
	binary = filepath.Join(t.TempDir(), "basegate")
	must(t, os.WriteFile(binary, fmt.Appendf(nil, "#!/bin/sh\nulimit -n %d\nexec %q \"$@\"\n", limit, original), 0o700))
}

// Clients that hold as many connections as they can leave file descriptors for the requests that run, and for the
// probes of the admin listener.
func TestConnectionsLeaveFileDescriptorsForRequests(t *testing.T) {
	limitOpenFiles(t, 200)
	g := newEnvironment(t, settings{}, greedyBackend(t)).serve()
	const request = `{"model":"m","prompt":"legitimate"}`
	var clients []*http.Client // whose connections are open; none to the backend is
	for range 20 {
		c := &http.Client{Transport: new(http.Transport)}
		t.Cleanup(c.CloseIdleConnections)
		if got := g.send(c, http.MethodGet, "/v1/models", g.secret, ""); got != http.StatusOK {
			t.Fatalf("before the flood: got %d", got)
		}
		clients = append(clients, c)
	}
	var flood []net.Conn
	closeAll := func() {
		for _, c := range flood {
			c.Close()
		}
		flood = nil
	}
	t.Cleanup(closeAll)
	for range 400 {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(g.url, "http://"))
		must(t, err)
		flood = append(flood, c)
	}
	poll.Until(t, "the gateway has accepted what it takes", func() bool {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.cmd.Process.Pid))
		must(t, err)
		return len(files) >= 100
	})
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			if got := g.send(c, http.MethodPost, "/v1/completions", g.secret, request); got != http.StatusOK {
				t.Errorf("during the flood: got %d, want 200", got)
			}
		})
	}
	all.Wait()
	resp, err := http.Get(g.admin + "/readyz")
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/readyz during the flood: got %d, want 200", resp.StatusCode)
	}
	closeAll()
	if got := g.post(g.secret, request); got != http.StatusOK {
		t.Errorf("a new connection after the flood: got %d, want 200", got)
	}
}
