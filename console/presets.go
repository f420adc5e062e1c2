package console

import (
	"net/http"
	"strings"
	"unicode/utf8"

	"basegate/console/prompts"
)

const (
	maxPresetName     = 60       // characters
	maxPresetSettings = 16 << 10 // bytes
)

func (c *Console) listPresets(r *request) error {
	all, err := c.Prompts.Presets(r.ctx(), r.account.ID)
	return r.sendResult(http.StatusOK, map[string]any{"presets": all}, err)
}

// savePreset stores a preset of the user, in the place of the one of the same name.
func (c *Console) savePreset(r *request) error {
	var p prompts.Preset
	if err := r.readJSON(&p); err != nil {
		return err
	}
	p.Name = strings.TrimSpace(p.Name)
	switch {
	case p.Mode != "completion" && p.Mode != "chat":
		return invalid("A preset is one of completion or chat.")
	case p.Name == "":
		return invalid("It needs a name.")
	case utf8.RuneCountInString(p.Name) > maxPresetName:
		return invalid("The name is too long: up to " + formatNumber(maxPresetName) + " characters are taken.")
	case len(p.Settings) == 0 || p.Settings[0] != '{' || len(p.Settings) > maxPresetSettings:
		return invalid("The parameters are an object of up to " + formatBytes(maxPresetSettings) + ".")
	}
	return r.noContent(c.Prompts.SavePreset(r.ctx(), r.account.ID, p))
}

func (c *Console) deletePreset(r *request) error {
	return r.noContent(c.Prompts.DeletePreset(r.ctx(), r.account.ID, r.query("mode"), r.query("name")))
}
