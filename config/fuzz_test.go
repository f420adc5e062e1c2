package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"basegate/config"
)

var complaint = regexp.MustCompile(`^config\.yaml:[1-9][0-9]*: .`)

// FuzzParse checks that nothing makes Parse panic, that every complaint is one line which begins with a place within
// the file, and that what passes holds together.
func FuzzParse(f *testing.F) {
	good, _ := filepath.Glob("testdata/good/*.yaml")
	for _, path := range append(good, example) {
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
			holdsTogether(t, c)
			return
		}
		var invalid *config.InvalidError
		if c != nil || !errors.As(err, &invalid) {
			t.Fatalf("got %v and %T", c, err)
		}
		for line := range strings.Lines(err.Error()) {
			if !complaint.MatchString(line) {
				t.Errorf("complaint without a place: %q", line)
			}
		}
		lines := 1 + strings.Count(text, "\n") + strings.Count(text, "\r")
		for _, m := range invalid.Mistakes {
			if m.Line > lines {
				t.Errorf("line %d of %d: %v", m.Line, lines, m)
			}
		}
	})
}

func holdsTogether(t *testing.T, c *config.Config) {
	t.Helper()
	if len(c.Models) == 0 || c.Server.PublicURL == nil || c.Server.MaxBodyBytes <= 0 || c.Upstream.Attempts < 1 {
		t.Errorf("incomplete: %+v", c)
	}
	for _, m := range c.Models {
		if m.ID == "" || m.Checkpoint == "" || len(m.Backends) == 0 || m.MaxLogprobs < 0 {
			t.Errorf("incomplete: %+v", m)
		}
		for _, b := range m.Backends {
			if b.Name == "" || b.URL == nil || b.URL.Host == "" {
				t.Errorf("incomplete: %+v", b)
			}
		}
		for _, w := range m.WarmWindows {
			if w.Days == 0 || w.Location == nil || w.From == w.To {
				t.Errorf("incomplete: %+v", w)
			}
		}
	}
}
