//go:build e2e

package e2e_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"basegate/internal/loopback"
	"basegate/internal/poll"
)

// toxiproxy is a Toxiproxy server, which `make cluster` builds, by its HTTP API.
type toxiproxy struct {
	t   *testing.T
	api string
}

// startToxiproxy starts a server until the test ends.
func startToxiproxy(t *testing.T) *toxiproxy {
	t.Helper()
	program, err := filepath.Abs("../bin/toxiproxy")
	must(t, err)
	if _, err := os.Stat(program); err != nil {
		t.Fatal("bin/toxiproxy is missing: make bin/toxiproxy")
	}
	address := loopback.Address(t)
	x := &toxiproxy{t: t, api: "http://" + address}
	log := newOutput(t)
	cmd := exec.Command(program, "-host", "127.0.0.1", "-port", portOf(t, address))
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("Toxiproxy wrote:\n%.4000s", log.tail())
		}
	})
	poll.Until(t, "Toxiproxy listens", func() bool {
		resp, err := httpClient.Get(x.api + "/version")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return true
	})
	return x
}

// call sends a request to the API. A failure is the test's.
func (x *toxiproxy) call(method, path string, body any) {
	x.t.Helper()
	text, err := json.Marshal(body)
	must(x.t, err)
	r, err := http.NewRequest(method, x.api+path, bytes.NewReader(text)) // without t.Context: faults are undone at the end
	must(x.t, err)
	resp, err := httpClient.Do(r)
	must(x.t, err)
	resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		x.t.Errorf("Toxiproxy: %s %s: %s", method, path, resp.Status)
	}
}

// add starts a proxy and returns its address.
func (x *toxiproxy) add(name, upstream string) (address string) {
	x.t.Helper()
	address = loopback.Address(x.t)
	x.call(http.MethodPost, "/proxies", map[string]any{"name": name, "listen": address, "upstream": upstream, "enabled": true})
	return address
}

// refuse closes the connections of a proxy and refuses new ones, until the function that it returns is called.
func (x *toxiproxy) refuse(name string) (undo func()) {
	x.call(http.MethodPost, "/proxies/"+name, map[string]any{"enabled": false})
	return func() { x.call(http.MethodPost, "/proxies/"+name, map[string]any{"enabled": true}) }
}

// silence lets connections stay open and delivers nothing in a direction (upstream or downstream), until the function that it
// returns is called.
func (x *toxiproxy) silence(name, direction string) (undo func()) {
	return x.toxic(name, map[string]any{"name": "silence-" + direction, "type": "timeout", "stream": direction, "attributes": map[string]any{"timeout": 0}})
}

// cutConnections ends each connection after so many bytes of replies until the function that it returns is called.
func (x *toxiproxy) cutConnections(name string, after int) (undo func()) {
	return x.toxic(name, map[string]any{"name": "cut", "type": "limit_data", "stream": "downstream", "attributes": map[string]any{"bytes": after}})
}

func (x *toxiproxy) toxic(name string, toxic map[string]any) (undo func()) {
	x.call(http.MethodPost, "/proxies/"+name+"/toxics", toxic)
	return func() { x.call(http.MethodDelete, "/proxies/"+name+"/toxics/"+toxic["name"].(string), nil) }
}
