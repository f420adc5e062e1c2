package config

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Partial is a configuration that may have mistakes. It gives out the settings that can be read with certainty in spite
// of them, for commands that must work while the file is being edited.
type Partial struct {
	config   *Config
	mistakes []Diagnostic
	names    []string // the top-level keys that were found
	certain  bool     // the file has no other top-level keys: it is one YAML document, a section of keys
	text     []byte
}

// LoadPartial reads the file at path as Load does, but fails only if the file cannot be read.
func LoadPartial(path string) (*Partial, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	doc := newDocument(path, os.LookupEnv)
	p := &Partial{config: Default(), text: text}
	if root, ok := doc.parse(text); ok {
		_, isSection := root.entries()
		p.certain = isSection && len(doc.errs) == 0
		p.names = root.keyNames()
		root.section(reflect.ValueOf(p.config).Elem())
	} else {
		p.parseBlocks(doc)
	}
	p.mistakes = sortByLine(doc.errs)
	return p, nil
}

// topLevelKey matches the beginning of a line with a key.
var topLevelKey = regexp.MustCompile(`(?m)^["']?([A-Za-z_][A-Za-z0-9_-]*)["']?[ \t]*:(?:[ \t\r\n]|$)`)

// parseBlocks parses each top-level key whose lines are YAML by themselves, of a text that is not YAML as a whole. Lines
// before the first key are left out.
func (p *Partial) parseBlocks(doc *document) {
	text := bytes.TrimPrefix(p.text, []byte("\uFEFF"))
	found := topLevelKey.FindAllSubmatchIndex(text, -1)
	for i, match := range found {
		begin, end, key := match[0], len(text), string(text[match[2]:match[3]])
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		above, mistakes := bytes.Count(text[:begin], []byte("\n")), len(doc.errs)
		// Empty lines before the block give its values the line numbers of the file.
		root, ok := doc.parse(append(bytes.Repeat([]byte("\n"), above), text[begin:end]...))
		entries, isSection := root.entries()
		if !ok || !isSection {
			doc.errs = doc.errs[:mistakes]
			doc.errorf(above+1, key, "this section cannot be read")
			p.names = append(p.names, key)
			continue
		}
		p.names = append(p.names, root.keyNames()...)
		for _, entry := range entries {
			root.decodeEntry(entry, keysOf(reflect.ValueOf(p.config).Elem()))
		}
	}
}

// Mistakes returns an *InvalidError with every mistake that was found; nil if there is none.
func (p *Partial) Mistakes() error {
	if len(p.mistakes) == 0 {
		return nil
	}
	return &InvalidError{Diagnostics: p.mistakes}
}

// Config returns the configuration, of which only the given keys and those below them are certain. The error holds all
// mistakes, if one of them may be about these keys: a wrong database would be worse than none.
func (p *Partial) Config(keys ...string) (*Config, error) {
	if slices.ContainsFunc(keys, p.isDoubtful) {
		return nil, p.Mistakes()
	}
	return p.config, nil
}

// isDoubtful reports whether a mistake may concern a key, or a key below it.
func (p *Partial) isDoubtful(key string) bool {
	section, _, _ := strings.Cut(key, ".")
	if slices.ContainsFunc(p.mistakes, func(d Diagnostic) bool { return d.Key == section || d.concerns(key) }) {
		return true
	}
	misspelt := func(name string) bool { return name != section && suggestKey(name, []string{section}) != "" }
	if len(p.mistakes) > 0 && slices.ContainsFunc(p.names, misspelt) {
		return true
	}
	// The default would be wrong if the section stands where it was not found.
	return !p.certain && !slices.Contains(p.names, section) && bytes.Contains(p.text, []byte(section))
}
