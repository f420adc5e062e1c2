package console_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
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
	for encodings, coding := range map[string]string{
		"gzip": "gzip", "gzip, deflate, br, zstd": "br", "br;q=1.0, gzip; q=0.5": "br", "GZIP, br;q=0.0": "gzip", "identity": "", "": "", "gzip;q=0": "", "br;q=0, gzip;q=0.0": "",
	} {
		header, body := s.fetchStatic("/static/none/console.css", encodings)
		if header.Get("Content-Encoding") != coding || header.Get("Vary") != "Accept-Encoding" || !strings.HasPrefix(header.Get("Content-Type"), "text/css") {
			t.Errorf("%q: got %v", encodings, header)
			continue
		}
		var r io.Reader = bytes.NewReader(body)
		switch coding {
		case "br":
			r = brotli.NewReader(r)
		case "gzip":
			zipped, err := gzip.NewReader(r)
			must(t, err)
			r = zipped
		}
		if body, err := io.ReadAll(r); err != nil || !bytes.Equal(body, want) {
			t.Errorf("%q: got %d bytes that are not the file: %v", encodings, len(body), err)
		}
	}
}

func TestScriptsAndStyleSheetsAreMinified(t *testing.T) {
	s := newSite(t)
	for name, want := range map[string]string{"console.css": "--ground: #fbfbf9", "session.js": "signInAgain"} {
		file, err := os.ReadFile("static/" + name)
		must(t, err)
		_, got := s.fetchStatic("/static/none/"+name, "identity")
		if len(got) > len(file)*9/10 || !bytes.Contains(got, []byte(want)) {
			t.Errorf("%s: got %d of %d bytes: %.300s", name, len(got), len(file), got)
		}
	}
}

// The workbench loads one script for all of its modules. What other scripts of the page import too is not in it.
func TestTheModulesOfTheWorkbenchAreOneScript(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	page := s.signIn("ada@example.org").get("/workbench").body
	if got := regexp.MustCompile(`src="/static/[0-9a-f]+/(workbench/[^"]+)"`).FindAllStringSubmatch(page, -1); len(got) != 2 || got[1][1] != "workbench/page.js" {
		t.Errorf("got %v", got)
	}
	_, script := s.fetchStatic("/static/none/workbench/page.js", "identity")
	imported := map[string]bool{}
	for _, m := range regexp.MustCompile(`from"([^"]+)"`).FindAllSubmatch(script, -1) {
		imported[string(m[1])] = true
	}
	if want := map[string]bool{"../session.js": true, "../times.js": true}; !maps.Equal(imported, want) {
		t.Errorf("got imports of %v, want of %v", imported, want)
	}
	for name := range imported {
		if !regexp.MustCompile(`<link rel="modulepreload" href="/static/[0-9a-f]+/` + strings.TrimPrefix(name, "../") + `">`).MatchString(page) {
			t.Errorf("%s is not preloaded", name)
		}
	}
	for _, want := range []string{"basegate-drafts", "IDBDatabase", "castInput"} { // of a module, and of two vendored ones
		if !bytes.Contains(script, []byte(want)) {
			t.Errorf("%q is missing", want)
		}
	}
}
