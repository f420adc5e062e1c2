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
	maxSaved      = 4 << 20 // bytes of one, with its branches
	maxPrompts    = 1000    // of one account
	maxPromptName = 200     // characters
	maxModelName  = 200     // characters
	maxListed     = 100
	maxWords      = 20 // of a search
)

// prompt is what somebody has saved in the workbench: a text with its branches, the only text that the gateway keeps.
type prompt struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Model    string          `json:"model"`
	Updated  time.Time       `json:"updated"`
	Version  int64           `json:"version"`
	Bytes    int64           `json:"bytes"`
	Document json.RawMessage `json:"document,omitempty"`
}

// sentPrompt is one as the workbench sends it.
type sentPrompt struct {
	Name     string          `json:"name"`
	Model    string          `json:"model"`
	Version  int64           `json:"version"` // that the change is to; of a new one 0
	Document json.RawMessage `json:"document"`
}

func (p *sentPrompt) problem() error {
	p.Name = strings.TrimSpace(p.Name)
	switch {
	case p.Name == "":
		return invalid("It needs a name.")
	case utf8.RuneCountInString(p.Name) > maxPromptName:
		return invalid("The name is too long: up to " + number(maxPromptName) + " characters are taken.")
	case utf8.RuneCountInString(p.Model) > maxModelName:
		return invalid("The model's name is too long: up to " + number(maxModelName) + " characters are taken.")
	case len(p.Document) == 0 || p.Document[0] != '{':
		return invalid("There is no document to save.")
	}
	return nil
}

// words is what a search finds: the name, the prompts and the texts of all branches, and no word of the JSON around them.
func (p *sentPrompt) words() string {
	var all strings.Builder
	all.WriteString(p.Name)
	gjson.GetBytes(p.Document, "tree.nodes").ForEach(func(_, node gjson.Result) bool {
		all.WriteString("\n" + node.Get("text").Str + "\n")
		node.Get("tokens.#.text").ForEach(func(_, text gjson.Result) bool { all.WriteString(text.Str); return true })
		return true
	})
	return folded(all.String())
}

// folded is a text as it is searched for: É is é, whatever it was written with.
func folded(text string) string { return cases.Fold().String(norm.NFC.String(text)) }

var (
	errNoPrompt  = &problem{http.StatusNotFound, "There is no such prompt", "It is not there, or not any more."}
	errConflict  = &problem{http.StatusConflict, "It was changed elsewhere", "It was changed elsewhere since it was opened here. Nothing was saved."}
	errManyWords = invalid("A search takes up to " + number(maxWords) + " words.")
	errFull      = invalid("There are " + number(maxPrompts) + " saved prompts already, which is as many as an account may have. Delete some.")
)

func (c *Console) savedPrompts(r *request) error {
	words := strings.Fields(folded(r.query("q")))
	if len(words) > maxWords {
		return errManyWords
	}
	all, err := c.findPrompts(r.ctx(), r.account.ID, words)
	if err != nil {
		return err
	}
	return r.sendJSON(http.StatusOK, map[string]any{"prompts": all[:min(len(all), maxListed)], "more": len(all) > maxListed})
}

func (c *Console) savedPrompt(r *request) error {
	const text = `SELECT id, name, model, updated_at, version, octet_length(document), document FROM prompts WHERE account_id = $1 AND id = $2`
	row := c.db.Read().QueryRowContext(r.ctx(), text, r.account.ID, r.param("id"))
	var document string
	p, err := scanPrompt(row, &document)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoPrompt
	}
	if err != nil {
		return err
	}
	p.Document = json.RawMessage(document)
	return r.sendJSON(http.StatusOK, p)
}

func (c *Console) savePrompt(r *request) error {
	var p sentPrompt
	if err := r.readJSON(&p); err != nil {
		return err
	}
	if err := p.problem(); err != nil {
		return err
	}
	id, words := "pr_"+rand.Text(), p.words()
	err := c.db.WriteGrouped(r.ctx(), func(tx database.Tx) error {
		ctx := context.WithoutCancel(r.ctx())
		var there int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM prompts WHERE account_id = $1", r.account.ID).Scan(&there); err != nil {
			return fmt.Errorf("count prompts: %w", err)
		}
		if there >= maxPrompts {
			return errFull
		}
		const text = `INSERT INTO prompts (id, account_id, name, model, version, updated_at, words, document) VALUES ($1, $2, $3, $4, 1, $5, $6, $7)`
		_, err := tx.ExecContext(ctx, text, id, r.account.ID, p.Name, p.Model, c.clock().UnixMicro(), words, string(p.Document))
		return err
	})
	if err != nil {
		return fmt.Errorf("save prompt: %w", err)
	}
	return r.sendJSON(http.StatusCreated, map[string]any{"id": id, "version": 1})
}

// changePrompt takes the place of the version that was open, and of no later one.
func (c *Console) changePrompt(r *request) error {
	var p sentPrompt
	if err := r.readJSON(&p); err != nil {
		return err
	}
	if err := p.problem(); err != nil {
		return err
	}
	words := p.words()
	err := c.db.WriteGrouped(r.ctx(), func(tx database.Tx) error {
		ctx := context.WithoutCancel(r.ctx())
		var version int64
		err := tx.QueryRowContext(ctx, "SELECT version FROM prompts WHERE account_id = $1 AND id = $2", r.account.ID, r.param("id")).Scan(&version)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return errNoPrompt
		case err != nil:
			return fmt.Errorf("read version: %w", err)
		case version != p.Version:
			return errConflict
		}
		const text = `UPDATE prompts SET name = $2, model = $3, version = version + 1, updated_at = $4, words = $5, document = $6 WHERE id = $1`
		_, err = tx.ExecContext(ctx, text, r.param("id"), p.Name, p.Model, c.clock().UnixMicro(), words, string(p.Document))
		return err
	})
	if err != nil {
		return fmt.Errorf("save prompt: %w", err)
	}
	return r.sendJSON(http.StatusOK, map[string]any{"version": p.Version + 1})
}

func (c *Console) deletePrompt(r *request) error {
	var gone int64
	err := c.db.WriteGrouped(r.ctx(), func(tx database.Tx) error {
		result, err := tx.ExecContext(context.WithoutCancel(r.ctx()), "DELETE FROM prompts WHERE account_id = $1 AND id = $2", r.account.ID, r.param("id"))
		if err != nil {
			return err
		}
		gone, err = result.RowsAffected()
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("delete prompt: %w", err)
	case gone == 0:
		return errNoPrompt
	}
	r.Response().WriteHeader(http.StatusNoContent)
	return nil
}

// findPrompts lists an account's prompts that have all the words in name or text, the last changed first: one more than
// are shown, where there are so many.
func (c *Console) findPrompts(ctx context.Context, account string, words []string) ([]prompt, error) {
	var text strings.Builder
	text.WriteString("SELECT id, name, model, updated_at, version, octet_length(document) FROM prompts WHERE account_id = $1")
	args := []any{account}
	for _, w := range words {
		args = append(args, "%"+escapeLike.Replace(w)+"%")
		fmt.Fprintf(&text, ` AND words LIKE $%d ESCAPE '\'`, len(args))
	}
	fmt.Fprintf(&text, " ORDER BY updated_at DESC, id LIMIT %d", maxListed+1)
	rows, err := c.db.Read().QueryContext(ctx, text.String(), args...)
	if err != nil {
		return nil, fmt.Errorf("list prompts: %w", err)
	}
	defer rows.Close()
	all := []prompt{}
	for rows.Next() {
		p, err := scanPrompt(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list prompts: %w", err)
	}
	return all, nil
}

// escapeLike keeps what has a meaning to LIKE from having it.
var escapeLike = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

func scanPrompt(row interface{ Scan(into ...any) error }, more ...any) (p prompt, err error) {
	var updated int64
	if err := row.Scan(append([]any{&p.ID, &p.Name, &p.Model, &updated, &p.Version, &p.Bytes}, more...)...); err != nil {
		return p, fmt.Errorf("read prompt: %w", err)
	}
	p.Updated = time.UnixMicro(updated).UTC()
	return p, nil
}
