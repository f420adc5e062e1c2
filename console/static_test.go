package console_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
)

// fetchStatic requests a static file with an Accept-Encoding.
func (s *site) fetchStatic(path, encodings string) (http.Header, []byte) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodGet, s.url+path, nil)
	must(s.t, err)
	req.Header.Set("Accept-Encoding", encodings) // also keeps the client from decompressing
	resp, err := http.DefaultClient.Do(req)
	must(s.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(s.t, err)
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: got %s", path, resp.Status)
	}
	return resp.Header, body
}

func TestStaticFilesAreCompressedForClientsThatTakeIt(t *testing.T) {
	s := newSite(t)
	_, want := s.fetchStatic("/static/none/console.css", "identity")
	if file, err := os.ReadFile("static/console.css"); err != nil || !bytes.Equal(want, file) {
		t.Errorf("got %d bytes that are not the file (%v)", len(want), err)
	}
	for encodings, zipped := range map[string]bool{"gzip": true, "br;q=1.0, gzip; q=0.5": true, "identity": false, "": false, "gzip;q=0": false, "br, gzip;q=0.0": false} {
		header, body := s.fetchStatic("/static/none/console.css", encodings)
		if got := header.Get("Content-Encoding") == "gzip"; got != zipped {
			t.Errorf("%q: got %v", encodings, header)
			continue
		}
		if header.Get("Vary") != "Accept-Encoding" || !strings.HasPrefix(header.Get("Content-Type"), "text/css") {
			t.Errorf("%q: got %v", encodings, header)
		}
		if zipped {
			r, err := gzip.NewReader(bytes.NewReader(body))
			must(t, err)
			body, err = io.ReadAll(r)
			must(t, err)
		}
		if !bytes.Equal(body, want) {
			t.Errorf("%q: got %d bytes that are not the file", encodings, len(body))
		}
	}
}

func TestScriptsAreServedWithoutTheirComments(t *testing.T) {
	s := newSite(t)
	_, script := s.fetchStatic("/static/none/workbench/tree.js", "identity")
	if regexp.MustCompile(`(?m)^\s*//`).Match(script) || !bytes.Contains(script, []byte("export function newTree(")) {
		t.Errorf("got %.300s", script)
	}
	_, vendored := s.fetchStatic("/static/none/vendor/idb/index.js", "identity")
	if file, err := os.ReadFile("static/vendor/idb/index.js"); err != nil || !bytes.Equal(vendored, file) {
		t.Errorf("vendored: got %d bytes that are not the file (%v)", len(vendored), err)
	}
}

// The workbench names all of its modules, so that a browser requests them at once.
func TestTheWorkbenchPreloadsItsModules(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	page := s.signIn("ada@example.org").get("/workbench").body
	named := map[string]bool{}
	for _, m := range regexp.MustCompile(`<link rel="modulepreload" href="/static/[0-9a-f]+/([^"]+)">`).FindAllStringSubmatch(page, -1) {
		named[m[1]] = true
	}
	files, err := os.ReadDir("static/workbench")
	must(t, err)
	for _, f := range files {
		if name := "workbench/" + f.Name(); !named[name] && name != "workbench/reload.js" { // a classic script, which reports a module that fails
			t.Errorf("%s is not preloaded", name)
		}
	}
	if !named["vendor/idb/index.js"] || !named["times.js"] {
		t.Errorf("got %v, want what the modules import from other folders too", named)
	}
}
