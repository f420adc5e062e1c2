package prompts

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"basegate/database"
)

const (
	// searchWait is how long a search waits for other long reads.
	searchWait = 2 * time.Second
	// maxWords limits the words of a prompt, in bytes, since a row with them delays other writes.
	maxWords = 64 << 10
)

// Search returns the prompts of an account whose name and texts contain all words, without regard to case, the last
// changed first, at most limit, and reports whether there are more. Without words it returns all prompts. The error is
// database.ErrReportsBusy or ErrReportTooLong if it exceeds the limits of long reads: it may read the words of all of the
// account's prompts.
func (s *Store) Search(ctx context.Context, account string, words []string, limit int) (found []Prompt, more bool, err error) {
	return s.search(ctx, account, `, ''`, `account_id = $1`, words, limit)
}

// SearchShared is Search among the prompts that other accounts, which are active, have shared with everyone.
func (s *Store) SearchShared(ctx context.Context, account string, words []string, limit int) (found []Prompt, more bool, err error) {
	const owner = `, (SELECT email FROM accounts a WHERE a.id = account_id)`
	const ofOthers = `everyone AND account_id <> $1 AND account_id IN (SELECT id FROM accounts WHERE state = 'active')`
	return s.search(ctx, account, owner, ofOthers, words, limit)
}

// search finds prompts that a condition on the account selects, and an expression has the owner of.
func (s *Store) search(ctx context.Context, account, owner, condition string, words []string, limit int) (found []Prompt, more bool, err error) {
	folded := make([][]byte, len(words))
	for i, w := range words {
		folded[i] = []byte(fold(w))
	}
	text := `SELECT ` + columns + owner + `, ''`
	if len(words) > 0 {
		text = `SELECT ` + columns + owner + `, words`
	}
	text += ` FROM prompts WHERE ` + condition + ` AND latest = TRUE ORDER BY updated_at DESC, id`
	err = s.db.Report(ctx, account, searchWait, func(ctx context.Context, from database.Reader) error {
		rows, err := from.QueryContext(ctx, text, account)
		if err != nil {
			return err
		}
		defer rows.Close()
		for !more && rows.Next() {
			var p stored
			var has sql.RawBytes
			if err := p.scan(rows.Scan, &p.Owner, &has); err != nil {
				return err
			}
			if slices.ContainsFunc(folded, func(w []byte) bool { return !bytes.Contains(has, w) }) {
				continue
			}
			if more = len(found) == limit; !more {
				found = append(found, p.Prompt)
			}
		}
		return rows.Err()
	})
	if err != nil {
		return nil, false, fmt.Errorf("search prompts: %w", err)
	}
	return found, more, nil
}

// searchWords returns the different words, folded and up to maxWords, of the name and of the texts of the prompts and all
// branches, without the JSON around them. A word of a search has no space, so it is part of one of them.
func searchWords(d Draft) []byte {
	var text strings.Builder
	text.WriteString(d.Name)
	gjson.GetBytes(d.Document, "tree.nodes").ForEach(func(_, node gjson.Result) bool {
		text.WriteString("\n" + node.Get("text").Str + "\n")
		for _, texts := range []string{"tokens.text", "tokens.#.text"} { // the latter in documents from before format 3
			node.Get(texts).ForEach(func(_, token gjson.Result) bool { text.WriteString(token.Str); return true })
		}
		return true
	})
	words := []byte{}
	known := map[string]bool{}
	for word := range strings.FieldsSeq(fold(text.String())) {
		if !known[word] {
			known[word] = true
			words = append(append(words, word...), '\n')
		}
		if len(words) >= maxWords {
			return words[:maxWords]
		}
	}
	return words
}

// fold normalizes a text (NFC) and folds its case, so that a search ignores both.
func fold(text string) string { return cases.Fold().String(norm.NFC.String(text)) }
