package prompts

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"basegate/database"
)

// searchWait is how long a search waits for other long reads.
const searchWait = 2 * time.Second

// Search returns the prompts of an account whose name and texts contain all words, without regard to case, the last
// changed first, at most limit, and reports whether there are more. Without words it returns all prompts. The error is
// database.ErrReportsBusy or ErrReportTooLong if it exceeds the limits of long reads: it may read all of the account's
// contents.
func (s *Store) Search(ctx context.Context, account string, words []string, limit int) (found []Prompt, more bool, err error) {
	err = s.db.Report(ctx, account, searchWait, func(ctx context.Context, from database.Reader) (err error) {
		found, more, err = search(ctx, from, account, words, limit)
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("search prompts: %w", err)
	}
	return found, more, nil
}

func search(ctx context.Context, from querier, account string, words []string, limit int) (found []Prompt, more bool, err error) {
	all, err := selectPrompts(ctx, from, account)
	if err != nil {
		return nil, false, err
	}
	for _, p := range all {
		matches, err := contains(ctx, from, p, words)
		if err != nil {
			return nil, false, err
		}
		if !matches {
			continue
		}
		if len(found) == limit {
			return found, true, nil
		}
		found = append(found, p.Prompt)
	}
	return found, false, nil
}

// contains reports whether the searchable text of a prompt contains all words.
func contains(ctx context.Context, q querier, p listed, words []string) (bool, error) {
	if len(words) == 0 {
		return true, nil
	}
	m := newMatcher(words)
	skip := int(p.documentBytes % chunkBytes) // the text begins in the chunk in which the document ends
	err := readChunks(ctx, q, p.contentID, p.documentBytes/chunkBytes, func(chunk []byte) (more bool) {
		m.add(chunk[min(skip, len(chunk)):])
		skip = 0
		return len(m.missing) > 0
	})
	return len(m.missing) == 0, err
}

// matcher searches for words in a text that it gets in parts.
type matcher struct {
	missing [][]byte
	overlap int    // bytes of the text before a part in which a word may begin that ends in the part
	window  []byte // the overlap and the current part
}

func newMatcher(words []string) *matcher {
	m := &matcher{}
	for _, w := range words {
		word := []byte(fold(w))
		m.missing = append(m.missing, word)
		m.overlap = max(m.overlap, len(word)-1)
	}
	return m
}

// add searches the next part of the text.
func (m *matcher) add(part []byte) {
	keep := min(m.overlap, len(m.window))
	copy(m.window, m.window[len(m.window)-keep:])
	m.window = append(m.window[:keep], part...)
	left := m.missing[:0]
	for _, word := range m.missing {
		if !bytes.Contains(m.window, word) {
			left = append(left, word)
		}
	}
	m.missing = left
}

// searchText returns the folded text that a search matches: the name, and the texts of the prompts and all branches
// without the JSON around them.
func searchText(d Draft) string {
	var text strings.Builder
	text.WriteString(d.Name)
	gjson.GetBytes(d.Document, "tree.nodes").ForEach(func(_, node gjson.Result) bool {
		text.WriteString("\n" + node.Get("text").Str + "\n")
		for _, texts := range []string{"tokens.text", "tokens.#.text"} { // the latter in documents from before format 3
			node.Get(texts).ForEach(func(_, token gjson.Result) bool { text.WriteString(token.Str); return true })
		}
		return true
	})
	return fold(text.String())
}

// fold normalizes a text (NFC) and folds its case, so that a search ignores both.
func fold(text string) string { return cases.Fold().String(norm.NFC.String(text)) }
