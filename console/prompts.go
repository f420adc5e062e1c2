package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"basegate/console/prompts"
	"basegate/identity"
)

const (
	maxPrompt          = 8 << 20 // bytes of a saved prompt with its branches, as sent
	maxPromptName      = 200     // characters
	maxModelName       = 200     // characters
	maxPromptsReturned = 100     // by one search
	maxSearchWords     = 20
)

// promptJSON is a saved prompt as scripts receive it.
type promptJSON struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Model    string          `json:"model"`
	Updated  time.Time       `json:"updated"`
	Version  int64           `json:"version"`
	Bytes    int64           `json:"bytes"` // of the quota
	Share    string          `json:"share"` // id of the link by which other users open it; empty if there is none
	Document json.RawMessage `json:"document,omitempty"`
}

func newPromptJSON(p prompts.Prompt) promptJSON {
	return promptJSON{ID: p.ID, Name: p.Name, Model: p.Model, Updated: p.Updated, Version: p.Version, Bytes: p.Bytes, Share: p.Share}
}

// promptInput is a prompt as the workbench sends it.
type promptInput struct {
	Name     string          `json:"name"`
	Model    string          `json:"model"`
	Version  int64           `json:"version"` // that the change is based on; 0 for a new prompt
	Document json.RawMessage `json:"document"`
}

// allowSave returns a problem if the account has saved too much lately. A body of unknown length counts as the largest.
func (c *Console) allowSave(r *request) error {
	size := r.Request().ContentLength
	if size < 0 {
		size = maxPrompt
	}
	return r.promptProblem(c.prompts.AllowSave(r.account.ID, size))
}

// readDraft reads the prompt that the workbench has sent, and the version that it is based on.
func (r *request) readDraft() (draft prompts.Draft, version int64, err error) {
	var p promptInput
	r.body.Unlimited = true // a large document takes minutes on a slow line
	if err := r.readJSON(&p); err != nil {
		return prompts.Draft{}, 0, err
	}
	if err := p.validate(); err != nil {
		return prompts.Draft{}, 0, err
	}
	return prompts.Draft{Name: p.Name, Model: p.Model, Document: p.Document}, p.Version, nil
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

var (
	errPromptNotFound = &problem{status: http.StatusNotFound, title: "There is no such prompt", text: "It is not there, or not any more."}
	errPromptConflict = &problem{
		status: http.StatusConflict, title: "It was changed elsewhere",
		text: "It was changed elsewhere since it was opened here. Nothing was saved.",
	}
	errTooManySearchWords = invalid("A search takes up to " + formatNumber(maxSearchWords) + " words.")
	errTooManyPrompts     = invalid("There are " + formatNumber(prompts.MaxPrompts) +
		" saved prompts already, which is as many as an account may have. Delete some.")
)

// promptProblem converts an error of package prompts to a problem, and returns any other error unchanged.
func (r *request) promptProblem(err error) error {
	var quota *prompts.QuotaError
	var rate *prompts.RateError
	switch {
	case errors.Is(err, prompts.ErrNotFound):
		return errPromptNotFound
	case errors.Is(err, prompts.ErrConflict):
		return errPromptConflict
	case errors.Is(err, prompts.ErrTooMany):
		return errTooManyPrompts
	case errors.As(err, &quota):
		return &problem{status: http.StatusRequestEntityTooLarge, title: "The saved prompts take too much space", text: fmt.Sprintf(
			"This prompt takes %s, and your other saved prompts take %s of the %s that your account may store. "+
				"Nothing was saved. Delete some prompts.",
			formatBytes(quota.Size), formatBytes(quota.Used), formatBytes(quota.Max))}
	case errors.As(err, &rate):
		r.setRetryAfter(rate.RetryIn)
		return &problem{
			status: http.StatusTooManyRequests, title: "This is too often",
			text: "Too much has been saved in a short time. Nothing was saved. Try again in " + formatDuration(rate.RetryIn) + ".",
		}
	}
	return err
}

// listPrompts searches the user's prompts. It also responds with how much of the quota they take.
func (c *Console) listPrompts(r *request) error {
	words := strings.Fields(r.query("q"))
	if len(words) > maxSearchWords {
		return errTooManySearchWords
	}
	found, more, err := c.prompts.Search(r.ctx(), r.account.ID, words, maxPromptsReturned)
	if err != nil {
		return err
	}
	used, err := c.prompts.Usage(r.ctx(), r.account.ID)
	if err != nil {
		return err
	}
	list := []promptJSON{}
	for _, p := range found {
		list = append(list, newPromptJSON(p))
	}
	return r.sendJSON(http.StatusOK, map[string]any{
		"prompts": list, "more": more, "bytes": used, "max_bytes": c.prompts.MaxBytesPerAccount(),
	})
}

// getPrompt responds with one of the user's prompts and its document.
func (c *Console) getPrompt(r *request) error {
	p, document, err := c.prompts.Get(r.ctx(), r.account.ID, r.param("id"))
	if err != nil {
		return r.promptProblem(err)
	}
	response := newPromptJSON(p)
	response.Document = document
	return r.sendJSON(http.StatusOK, response)
}

// createPrompt stores a new prompt.
func (c *Console) createPrompt(r *request) error {
	draft, _, err := r.readDraft()
	if err != nil {
		return err
	}
	p, err := c.prompts.Create(r.ctx(), r.account.ID, draft)
	if err != nil {
		return r.promptProblem(err)
	}
	return r.sendJSON(http.StatusCreated, map[string]any{"id": p.ID, "version": p.Version})
}

// updatePrompt replaces a prompt, unless it has been changed since the version that the change is based on.
func (c *Console) updatePrompt(r *request) error {
	draft, version, err := r.readDraft()
	if err != nil {
		return err
	}
	version, err = c.prompts.Update(r.ctx(), r.account.ID, r.param("id"), version, draft)
	if err != nil {
		return r.promptProblem(err)
	}
	return r.sendJSON(http.StatusOK, map[string]any{"version": version})
}

// sharePrompt makes the link by which other users open a prompt, and responds with its id. A prompt has one link.
func (c *Console) sharePrompt(r *request) error {
	share, err := c.prompts.Share(r.ctx(), r.account.ID, r.param("id"))
	if err != nil {
		return r.promptProblem(err)
	}
	return r.sendJSON(http.StatusOK, map[string]any{"share": share})
}

// unsharePrompt revokes the link of a prompt.
func (c *Console) unsharePrompt(r *request) error {
	if err := c.prompts.Unshare(r.ctx(), r.account.ID, r.param("id")); err != nil {
		return r.promptProblem(err)
	}
	r.Response().WriteHeader(http.StatusNoContent)
	return nil
}

// errNotShared is the response to a link that was revoked, or whose prompt was deleted.
var errNotShared = &problem{
	status: http.StatusNotFound, title: "This link does not work",
	text: "This link does not work: its prompt was deleted, or its owner has stopped sharing it.",
}

// getSharedPrompt responds with the prompt of a link, its document, and who shares it. The user can read it, and not
// change it.
func (c *Console) getSharedPrompt(r *request) error {
	p, document, err := c.prompts.GetShared(r.ctx(), r.param("share"))
	if errors.Is(err, prompts.ErrNotFound) {
		return errNotShared
	}
	if err != nil {
		return err
	}
	accounts, err := c.accounts.List(r.ctx())
	if err != nil {
		return err
	}
	owner := slices.IndexFunc(accounts, func(a identity.Account) bool { return a.ID == p.Account })
	if owner < 0 || accounts[owner].State != identity.AccountActive {
		return errNotShared
	}
	return r.sendJSON(http.StatusOK, map[string]any{
		"name": p.Name, "model": p.Model, "updated": p.Updated, "owner": accounts[owner].Email,
		"document": json.RawMessage(document),
	})
}

func (c *Console) deletePrompt(r *request) error {
	if err := c.prompts.Delete(r.ctx(), r.account.ID, r.param("id")); err != nil {
		return r.promptProblem(err)
	}
	r.Response().WriteHeader(http.StatusNoContent)
	return nil
}
