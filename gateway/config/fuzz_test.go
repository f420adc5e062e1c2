package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"basegate/gateway/config"
)

var diagnosticLine = regexp.MustCompile(`^config\.yaml:[1-9][0-9]*: .`)

// FuzzParse checks that no text makes Parse panic, that every diagnostic is one line that begins with a line number
// within the file, and that an accepted configuration is complete.
func FuzzParse(f *testing.F) {
	good, _ := filepath.Glob("testdata/good/*.yaml")
	f.Add(string(example(f)))
	for _, path := range good {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	bad, _ := filepath.Glob("testdata/bad/*.txtar")
	for _, path := range bad {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(section(archive, "config.yaml").Data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := config.Parse("config.yaml", []byte(text), func(name string) (string, bool) { return name, name != "UNSET" })
		if err == nil {
			checkComplete(t, c)
			return
		}
		var invalid *config.InvalidError
		if c != nil || !errors.As(err, &invalid) {
			t.Fatalf("got %v and %T, want nil and *config.InvalidError", c, err)
		}
		for line := range strings.Lines(err.Error()) {
			if !diagnosticLine.MatchString(line) {
				t.Errorf("diagnostic without a position: %q", line)
			}
		}
		lines := 1 + strings.Count(text, "\n") + strings.Count(text, "\r")
		for _, d := range invalid.Diagnostics {
			if d.Line > lines {
				t.Errorf("diagnostic on line %d of %d: %v", d.Line, lines, d)
			}
		}
	})
}

func checkComplete(t *testing.T, c *config.Config) {
	t.Helper()
	if len(c.Models) == 0 || c.Server.PublicURL == nil || c.Server.MaxBodyBytes <= 0 || c.Upstream.Attempts < 1 {
		t.Errorf("incomplete configuration: %+v", c)
	}
	for _, m := range c.Models {
		if m.ID == "" || m.Checkpoint == "" || len(m.Backends) == 0 || m.MaxLogprobs < 0 {
			t.Errorf("incomplete model: %+v", m)
		}
		for _, b := range m.Backends {
			if b.Name == "" || b.URL == nil || b.URL.Host == "" {
				t.Errorf("incomplete backend: %+v", b)
			}
		}
		for _, w := range m.WarmWindows {
			if w.Days == 0 || w.Location == nil || w.From == w.To {
				t.Errorf("incomplete window: %+v", w)
			}
		}
	}
}
