package console

import (
	"net/http"
	"strconv"
)

// listVersions responds with the versions of one of the user's prompts, the latest first.
func (c *Console) listVersions(r *request) error {
	all, err := c.Prompts.Versions(r.ctx(), r.account.ID, r.param("id"))
	return r.sendResult(http.StatusOK, map[string]any{"versions": all}, err)
}

func (r *request) version() (int64, error) {
	n, err := strconv.ParseInt(r.param("version"), 10, 64)
	if err != nil {
		return 0, errPromptNotFound
	}
	return n, nil
}

func (c *Console) getVersion(r *request) error {
	version, err := r.version()
	if err != nil {
		return err
	}
	return r.sendPrompt(c.Prompts.GetVersion(r.ctx(), r.account.ID, r.param("id"), version))
}

func (c *Console) deleteVersion(r *request) error {
	version, err := r.version()
	if err != nil {
		return err
	}
	return r.noContent(c.Prompts.DeleteVersion(r.ctx(), r.account.ID, r.param("id"), version))
}
