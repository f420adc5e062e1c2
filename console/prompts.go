package console

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"basegate/database"
)

const (
	maxPrompt          = 4 << 20 // bytes of a saved prompt with its branches, as sent
	maxPrompts         = 1000    // of one account
	maxPromptName      = 200     // characters
	maxModelName       = 200     // characters
	maxPromptsReturned = 100     // by one search
	maxSearchWords     = 20
)

// prompt is a prompt saved in the workbench, with its branches. The gateway stores no other prompts and completions.
type prompt struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Model    string          `json:"model"`
	Updated  time.Time       `json:"updated"`
	Version  int64           `json:"version"`
	Bytes    int64           `json:"bytes"`
	Document json.RawMessage `json:"document,omitempty"`
}

// promptInput is a prompt as the workbench sends it.
type promptInput struct {
	Name     string          `json:"name"`
	Model    string          `json:"model"`
	Version  int64           `json:"version"` // that the change is based on; 0 for a new prompt
	Document json.RawMessage `json:"document"`
}

// validate trims the name and returns a problem if the prompt cannot be saved.
func (p *promptInput) validate() error {
	p.Name = strings.TrimSpace(p.Name)
	switch {
	case p.Name == "":
		return invalid("It needs a name.")
	case utf8.RuneCountInString(p.Name) > maxPromptName:
		return invalid("The name is too long: up to " + formatNumber(maxPromptName) + " characters are taken.")
	case utf8.RuneCountInString(p.Model) > maxModelName:
		return invalid("The model's name is too long: up to " + formatNumber(maxModelName) + " characters are taken.")
	case len(p.Document) == 0 || p.Document[0] != '{':
		return invalid("There is no document to save.")
	}
	return nil
}

// searchText returns the folded text that a search matches: the name, and the texts of the prompts and all branches
// without the JSON around them.
func (p *promptInput) searchText() string {
	var text strings.Builder
	text.WriteString(p.Name)
	gjson.GetBytes(p.Document, "tree.nodes").ForEach(func(_, node gjson.Result) bool {
		text.WriteString("\n" + node.Get("text").Str + "\n")
		node.Get("tokens.#.text").ForEach(func(_, token gjson.Result) bool { text.WriteString(token.Str); return true })
		return true
	})
	return fold(text.String())
}

// fold normalizes a text (NFC) and folds its case, so that a search ignores both.
func fold(text string) string { return cases.Fold().String(norm.NFC.String(text)) }

var (
	errPromptNotFound = &problem{http.StatusNotFound, "There is no such prompt", "It is not there, or not any more."}
	errPromptConflict = &problem{
		http.StatusConflict, "It was changed elsewhere",
		"It was changed elsewhere since it was opened here. Nothing was saved.",
	}
	errTooManySearchWords = invalid("A search takes up to " + formatNumber(maxSearchWords) + " words.")
	errTooManyPrompts     = invalid("There are " + formatNumber(maxPrompts) +
		" saved prompts already, which is as many as an account may have. Delete some.")
)

// listPrompts searches the user's prompts.
func (c *Console) listPrompts(r *request) error {
	words := strings.Fields(fold(r.query("q")))
	if len(words) > maxSearchWords {
		return errTooManySearchWords
	}
	prompts, err := c.findPrompts(r.ctx(), r.account.ID, words)
	if err != nil {
		return err
	}
	return r.sendJSON(http.StatusOK, map[string]any{
		"prompts": prompts[:min(len(prompts), maxPromptsReturned)], "more": len(prompts) > maxPromptsReturned,
	})
}

// getPrompt responds with one of the user's prompts and its document.
func (c *Console) getPrompt(r *request) error {
	const text = `SELECT id, name, model, updated_at, version, octet_length(document), document
		FROM prompts WHERE account_id = $1 AND id = $2`
	row := c.db.Read().QueryRowContext(r.ctx(), text, r.account.ID, r.param("id"))
	var document string
	p, err := scanPrompt(row, &document)
	if errors.Is(err, sql.ErrNoRows) {
		return errPromptNotFound
	}
	if err != nil {
		return err
	}
	p.Document = json.RawMessage(document)
	return r.sendJSON(http.StatusOK, p)
}

// createPrompt stores a new prompt.
func (c *Console) createPrompt(r *request) error {
	var p promptInput
	if err := r.readJSON(&p); err != nil {
		return err
	}
	if err := p.validate(); err != nil {
		return err
	}
	id, account, searchText := "pr_"+rand.Text(), r.account.ID, p.searchText()
	ctx := context.WithoutCancel(r.ctx())
	err := c.db.WriteGrouped(r.ctx(), func(tx database.Tx) error {
		var count int
		row := tx.QueryRowContext(ctx, "SELECT count(*) FROM prompts WHERE account_id = $1", account)
		if err := row.Scan(&count); err != nil {
			return fmt.Errorf("count prompts: %w", err)
		}
		if count >= maxPrompts {
			return errTooManyPrompts
		}
		const text = `INSERT INTO prompts (id, account_id, name, model, version, updated_at, words, document)
			VALUES ($1, $2, $3, $4, 1, $5, $6, $7)`
		_, err := tx.ExecContext(ctx, text,
			id, account, p.Name, p.Model, c.clock().UnixMicro(), searchText, string(p.Document))
		return err
	})
	if err != nil {
		return fmt.Errorf("save prompt: %w", err)
	}
	return r.sendJSON(http.StatusCreated, map[string]any{"id": id, "version": 1})
}

// updatePrompt replaces a prompt, unless it has been changed since the version that the change is based on.
func (c *Console) updatePrompt(r *request) error {
	var p promptInput
	if err := r.readJSON(&p); err != nil {
		return err
	}
	if err := p.validate(); err != nil {
		return err
	}
	id, account, searchText := r.param("id"), r.account.ID, p.searchText()
	ctx := context.WithoutCancel(r.ctx())
	err := c.db.WriteGrouped(r.ctx(), func(tx database.Tx) error {
		var version int64
		const read = "SELECT version FROM prompts WHERE account_id = $1 AND id = $2"
		err := tx.QueryRowContext(ctx, read, account, id).Scan(&version)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return errPromptNotFound
		case err != nil:
			return fmt.Errorf("read version: %w", err)
		case version != p.Version:
			return errPromptConflict
		}
		const update = `UPDATE prompts
			SET name = $2, model = $3, version = version + 1, updated_at = $4, words = $5, document = $6 WHERE id = $1`
		_, err = tx.ExecContext(ctx, update,
			id, p.Name, p.Model, c.clock().UnixMicro(), searchText, string(p.Document))
		return err
	})
	if err != nil {
		return fmt.Errorf("save prompt: %w", err)
	}
	return r.sendJSON(http.StatusOK, map[string]any{"version": p.Version + 1})
}

func (c *Console) deletePrompt(r *request) error {
	const text = "DELETE FROM prompts WHERE account_id = $1 AND id = $2"
	id, account := r.param("id"), r.account.ID
	ctx := context.WithoutCancel(r.ctx())
	var deleted int64
	err := c.db.WriteGrouped(r.ctx(), func(tx database.Tx) error {
		result, err := tx.ExecContext(ctx, text, account, id)
		if err != nil {
			return err
		}
		deleted, err = result.RowsAffected()
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("delete prompt: %w", err)
	case deleted == 0:
		return errPromptNotFound
	}
	r.Response().WriteHeader(http.StatusNoContent)
	return nil
}

// findPrompts returns an account's prompts that contain all words in their search text, the last changed first, without
// their documents. It returns one more than maxPromptsReturned if there are more.
func (c *Console) findPrompts(ctx context.Context, account string, words []string) ([]prompt, error) {
	var text strings.Builder
	text.WriteString("SELECT id, name, model, updated_at, version, octet_length(document)" +
		" FROM prompts WHERE account_id = $1")
	args := []any{account}
	for _, w := range words {
		args = append(args, "%"+escapeLike.Replace(w)+"%")
		fmt.Fprintf(&text, ` AND words LIKE $%d ESCAPE '\'`, len(args))
	}
	fmt.Fprintf(&text, " ORDER BY updated_at DESC, id LIMIT %d", maxPromptsReturned+1)
	rows, err := c.db.Read().QueryContext(ctx, text.String(), args...)
	if err != nil {
		return nil, fmt.Errorf("list prompts: %w", err)
	}
	defer rows.Close()
	prompts := []prompt{}
	for rows.Next() {
		p, err := scanPrompt(rows)
		if err != nil {
			return nil, err
		}
		prompts = append(prompts, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list prompts: %w", err)
	}
	return prompts, nil
}

// escapeLike escapes the wildcards of LIKE.
var escapeLike = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// scanPrompt scans the columns of a prompt without its document, and then the additional ones.
func scanPrompt(row interface{ Scan(into ...any) error }, additional ...any) (p prompt, err error) {
	var updated int64
	columns := []any{&p.ID, &p.Name, &p.Model, &updated, &p.Version, &p.Bytes}
	if err := row.Scan(append(columns, additional...)...); err != nil {
		return p, fmt.Errorf("read prompt: %w", err)
	}
	p.Updated = time.UnixMicro(updated).UTC()
	return p, nil
}
