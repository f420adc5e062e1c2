package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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

// promptInput is a prompt as the workbench sends it.
type promptInput struct {
	prompts.Draft
	Version int64  `json:"version"` // that the change is based on; 0 for a new prompt
	From    string `json:"from"`    // of a new prompt that is a copy: the id of the prompt, or of the link by which it was read
}

// allowSave returns a problem if the account has saved too much lately. A body of unknown length counts as the largest.
func (c *Console) allowSave(r *request) error {
	size := r.Request().ContentLength
	if size < 0 {
		size = maxPrompt
	}
	retryIn := c.Prompts.AllowSave(r.account.ID, size)
	if retryIn == 0 {
		return nil
	}
	return r.tooOften(retryIn, "This is too often", "Too much has been saved in a short time. Nothing was saved.")
}

func (r *request) readPrompt() (p promptInput, err error) {
	r.body.Unlimited = true // a large document takes minutes on a slow line
	if err = r.readJSON(&p); err == nil {
		err = p.validate()
	}
	return p, err
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
	errPromptNotFound = newProblem(http.StatusNotFound, "There is no such prompt",
		"It is not there, or not any more.")
	errTooManySearchWords = invalid("A search takes up to " + formatNumber(maxSearchWords) + " words.")
	errTooManyPrompts     = invalid("There are " + formatNumber(prompts.MaxPrompts) +
		" saved prompts already, which is as many as an account may have. Delete some.")
	errTooManyPresets = invalid("There are " + formatNumber(prompts.MaxPresets) +
		" presets already, which is as many as an account may have. Delete some.")
)

// promptProblem returns the problem of an error of package prompts; nil for any other error.
func promptProblem(err error) *problem {
	var quota *prompts.QuotaError
	switch {
	case errors.Is(err, prompts.ErrNotFound):
		return errPromptNotFound
	case errors.Is(err, prompts.ErrTooMany):
		return errTooManyPrompts
	case errors.Is(err, prompts.ErrTooManyPresets):
		return errTooManyPresets
	case errors.As(err, &quota):
		return newProblem(http.StatusRequestEntityTooLarge, "The saved prompts take too much space",
			fmt.Sprintf(
				"This prompt takes %s, and your other saved prompts take %s of the %s that your account may store. "+
					"Nothing was saved. Delete some prompts.",
				formatBytes(quota.Size), formatBytes(quota.Used), formatBytes(quota.Max)))
	}
	return nil
}

// sharedPrompt is a prompt that another user has shared with everyone, without what tells more than its link does.
type sharedPrompt struct {
	Share   string    `json:"share"`
	Name    string    `json:"name"`
	Model   string    `json:"model"`
	Updated time.Time `json:"updated"`
	Owner   string    `json:"owner"`
}

// listPrompts searches the user's prompts, and those that others have shared with everyone. It also responds with how much of the quota
// the user's take.
func (c *Console) listPrompts(r *request) error {
	words := strings.Fields(r.query("q"))
	if len(words) > maxSearchWords {
		return errTooManySearchWords
	}
	found, more, err := c.Prompts.Search(r.ctx(), r.account.ID, words, maxPromptsReturned)
	if err != nil {
		return err
	}
	ofOthers, moreOfOthers, err := c.Prompts.SearchShared(r.ctx(), r.account.ID, words, maxPromptsReturned)
	if err != nil {
		return err
	}
	shared := make([]sharedPrompt, len(ofOthers))
	for i, p := range ofOthers {
		shared[i] = sharedPrompt{p.Share, p.Name, p.Model, p.Updated, p.Owner}
	}
	used, err := c.Prompts.Usage(r.ctx(), r.account.ID)
	return r.sendResult(http.StatusOK, map[string]any{
		"prompts": append([]prompts.Prompt{}, found...), "more": more, "shared": shared, "more_shared": moreOfOthers,
		"bytes": used, "max_bytes": c.Prompts.MaxBytesPerAccount(),
	}, err)
}

func (c *Console) getPrompt(r *request) error {
	return r.sendPrompt(c.Prompts.Get(r.ctx(), r.account.ID, r.param("id")))
}

func (r *request) sendPrompt(p prompts.Prompt, document []byte, err error) error {
	return r.sendResult(http.StatusOK, struct {
		prompts.Prompt
		Document json.RawMessage `json:"document"`
	}{p, document}, err)
}

func (c *Console) createPrompt(r *request) error {
	input, err := r.readPrompt()
	if err == nil && input.From != "" {
		input.Origin, err = c.originOf(r, input.From)
	}
	if err != nil {
		return err
	}
	p, err := c.Prompts.Create(r.ctx(), r.account.ID, input.Draft)
	return r.sendResult(http.StatusCreated, map[string]any{"id": p.ID, "version": p.Version}, err)
}

// originOf returns a prompt of the user or of a link as the origin of a copy.
func (c *Console) originOf(r *request, id string) (prompts.Origin, error) {
	versions, err := c.Prompts.Versions(r.ctx(), r.account.ID, id)
	if err == nil {
		return prompts.Origin{ID: id, Name: versions[0].Name}, nil
	}
	if !errors.Is(err, prompts.ErrNotFound) {
		return prompts.Origin{}, err
	}
	p, owner, _, err := c.readShared(r, id)
	return prompts.Origin{ID: id, Name: p.Name, Owner: owner.Email}, err
}

func (c *Console) updatePrompt(r *request) error {
	input, err := r.readPrompt()
	if err != nil {
		return err
	}
	version, err := c.Prompts.Update(r.ctx(), r.account.ID, r.param("id"), input.Version, input.Draft)
	return r.sendResult(http.StatusOK, map[string]any{"version": version}, err)
}

// sharePrompt makes the link by which other users open a prompt, and responds with its id. A prompt has one link.
func (c *Console) sharePrompt(r *request) error {
	share, isNew, err := c.Prompts.Share(r.ctx(), r.account.ID, r.param("id"))
	if err == nil && isNew {
		err = c.AuditLog.Record(r.ctx(), "share prompt", r.param("id"), "")
	}
	return r.sendResult(http.StatusOK, map[string]any{"share": share}, err)
}

// sharePromptWithEveryone lists the link of a prompt for all users, or for none.
func (c *Console) sharePromptWithEveryone(r *request) error {
	var input struct {
		Everyone bool `json:"everyone"`
	}
	err := r.readJSON(&input)
	if err == nil {
		err = c.Prompts.ShareWithEveryone(r.ctx(), r.account.ID, r.param("id"), input.Everyone)
	}
	if err == nil {
		action := map[bool]string{true: "share prompt", false: "unshare prompt"}[input.Everyone]
		err = c.AuditLog.Record(r.ctx(), action, r.param("id"), "with everyone")
	}
	return r.noContent(err)
}

func (c *Console) unsharePrompt(r *request) error {
	err := c.Prompts.Unshare(r.ctx(), r.account.ID, r.param("id"))
	if err == nil {
		err = c.AuditLog.Record(r.ctx(), "unshare prompt", r.param("id"), "")
	}
	return r.noContent(err)
}

// errNotShared is the response to a link that was revoked, or whose prompt was deleted.
var errNotShared = newProblem(http.StatusNotFound, "This link does not work",
	"This link does not work: its prompt was deleted, or its owner has stopped sharing it.")

// readShared returns the prompt of a link, its owner, and its document.
func (c *Console) readShared(r *request, share string) (p prompts.Prompt, owner identity.Account, document []byte, err error) {
	p, document, err = c.Prompts.GetShared(r.ctx(), share)
	if errors.Is(err, prompts.ErrNotFound) {
		return p, owner, nil, errNotShared
	}
	if err != nil {
		return p, owner, nil, err
	}
	owner, err = c.accountOf(r.ctx(), p.Account)
	if errors.Is(err, errNotFound) || err == nil && owner.State != identity.AccountActive {
		err = errNotShared
	}
	return p, owner, document, err
}

// getSharedPrompt responds with the prompt of a link, its document, and who shares it. The user can read it, and not
// change it.
func (c *Console) getSharedPrompt(r *request) error {
	p, owner, document, err := c.readShared(r, r.param("share"))
	return r.sendResult(http.StatusOK, map[string]any{
		"name": p.Name, "model": p.Model, "updated": p.Updated, "owner": owner.Email, "document": json.RawMessage(document),
	}, err)
}

func (c *Console) deletePrompt(r *request) error {
	return r.noContent(c.Prompts.Delete(r.ctx(), r.account.ID, r.param("id")))
}
