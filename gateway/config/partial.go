package config

import (
	"bytes"
	"os"
	"regexp"
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
		return nil, err
	}
	return parsePartial(path, text, os.LookupEnv), nil
}

// parsePartial parses a configuration. If the text is not YAML, each top-level key whose lines are YAML by themselves is
// parsed alone.
func parsePartial(name string, text []byte, env func(string) (string, bool)) *Partial {
	doc := &document{name: name, env: env}
	p := &Partial{config: Default(), text: text}
	if root, ok := doc.parse(text); ok {
		_, isSection := root.entries()
		p.certain = isSection && len(doc.errs) == 0
		p.names = root.keyNames()
		root.section(p.config.fields()...)
		p.config.check(root)
	} else {
		p.parseBlocks(doc)
	}
	p.mistakes = sortByLine(doc.errs)
	return p
}

// parseBlocks parses each top-level key of a text that is not YAML as a whole.
func (p *Partial) parseBlocks(doc *document) {
	lines := map[string]int{}
	for _, b := range topLevelBlocks(p.text) {
		own := &document{name: doc.name, env: doc.env}
		// Empty lines before the block give its values the line numbers of the file.
		root, ok := own.parse(append(bytes.Repeat([]byte("\n"), b.line-1), b.text...))
		entries, isSection := root.entries()
		if !ok || !isSection {
			doc.errorf(b.line, b.key, "this section cannot be read")
			p.names = append(p.names, b.key)
			continue
		}
		p.names = append(p.names, root.keyNames()...)
		for _, entry := range entries {
			root.decodeEntry(entry, p.config.fields(), lines)
		}
		doc.errs = append(doc.errs, own.errs...)
	}
}

// block is the lines of a top-level key.
type block struct {
	key  string
	line int // of the key, counted from 1
	text []byte
}

// topLevelKey matches a line that begins with a key.
var topLevelKey = regexp.MustCompile(`^["']?([A-Za-z_][A-Za-z0-9_-]*)["']?[ \t]*:(?:[ \t\r\n]|$)`)

// topLevelBlocks splits a text at the lines that begin with a key. Lines before the first one are left out.
func topLevelBlocks(text []byte) []block {
	var blocks []block
	number := 0
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\uFEFF"))) {
		number++
		if match := topLevelKey.FindSubmatch(line); match != nil {
			blocks = append(blocks, block{key: string(match[1]), line: number})
		}
		if last := len(blocks) - 1; last >= 0 {
			blocks[last].text = append(blocks[last].text, line...)
		}
	}
	return blocks
}

// keyNames returns the keys of a section.
func (v value) keyNames() []string {
	entries, _ := v.entries()
	var names []string
	for _, entry := range entries {
		names = append(names, keyName(entry.Key))
	}
	return names
}

// Mistakes returns an *InvalidError with every mistake that was found; nil if there is none.
func (p *Partial) Mistakes() error {
	if len(p.mistakes) == 0 {
		return nil
	}
	return &InvalidError{Diagnostics: p.mistakes}
}

// Database returns the section database. The error holds all mistakes, if one of them may be about the section: a wrong
// database would be worse than none.
func (p *Partial) Database() (Database, error) {
	if p.isDoubtful("database", "database") {
		return Database{}, p.Mistakes()
	}
	return p.config.Database, nil
}

// Listen returns server.listen and whether the server uses TLS. The error holds all mistakes, if one of them may be about
// these settings.
func (p *Partial) Listen() (address string, secure bool, err error) {
	if p.isDoubtful("server", "server.listen") || p.isDoubtful("server", "server.tls") {
		return "", false, p.Mistakes()
	}
	return p.config.Server.Listen, p.config.Server.TLS.Cert != "", nil
}

// AdminListen returns server.admin_listen. The error holds all mistakes, if one of them may be about it.
func (p *Partial) AdminListen() (string, error) {
	if p.isDoubtful("server", "server.admin_listen") {
		return "", p.Mistakes()
	}
	return p.config.Server.AdminListen, nil
}

// isDoubtful reports whether a mistake may concern a key of the given section, or a key below it.
func (p *Partial) isDoubtful(section, key string) bool {
	if len(p.mistakes) == 0 {
		return false
	}
	for _, d := range p.mistakes {
		if d.Key == section || d.Key == key || strings.HasPrefix(d.Key, key+".") {
			return true
		}
	}
	found := false
	for _, name := range p.names {
		if name != section && suggestKey(name, []string{section}) != "" {
			return true // probably misspelt
		}
		found = found || name == section
	}
	// The default would be wrong if the section stands where it was not found.
	return !found && !p.certain && bytes.Contains(p.text, []byte(section))
}
