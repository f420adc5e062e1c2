package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"basegate/gateway/config"
)

type settingsPage struct {
	General  settingsGroup
	Models   []*settingsGroup
	Pending  bool // a setting needs a restart
	Channels []messageChannel
	Problem  *problem // why a test message was not sent; nil if that was not tried
}

// settingsGroup are settings of a model, or of none.
type settingsGroup struct {
	Name    string // of the model
	Changed []config.Setting
	Default []config.Setting
}

// messageChannel is a way by which the gateway sends messages.
type messageChannel struct {
	ID, Name string
	key      string // of the setting that has the address
	Target   string // empty if it is not configured
}

var messageChannels = []messageChannel{
	{ID: "webhook", Name: "Webhook of notifications", key: "notifications.webhook"},
	{ID: "feedback", Name: "Webhook of feedback", key: "console.feedback_webhook"},
	{ID: "mail", Name: "Mail", key: "mail.smtp"},
}

// settingsPage shows administrators the configuration in force.
func (c *Console) settingsPage(r *request) error { return c.showSettings(r, http.StatusOK, nil) }

func (c *Console) showSettings(r *request, status int, p *problem) error {
	page := settingsPage{Channels: slices.Clone(messageChannels), Problem: p}
	models := map[string]*settingsGroup{} // by the beginning of their keys
	for _, v := range c.settings.Load().Configuration {
		page.Pending = page.Pending || v.Pending
		group := &page.General
		if model, key, found := strings.Cut(v.Key, "."); found && strings.HasPrefix(model, "models[") {
			if models[model] == nil {
				models[model] = &settingsGroup{Name: model}
				page.Models = append(page.Models, models[model])
			}
			group = models[model]
			if key == "id" {
				group.Name = v.Value
			}
		}
		if v.Changed || v.Pending {
			group.Changed = append(group.Changed, v)
		} else {
			group.Default = append(group.Default, v)
		}
		for i := range page.Channels {
			if page.Channels[i].key == v.Key {
				page.Channels[i].Target = v.Value
			}
		}
	}
	return c.renderStatus(r, status, "admin-settings", "Settings", page)
}

// sendTestMessage sends a test message by the channel in the path, and says what has become of it.
func (c *Console) sendTestMessage(r *request) error {
	at := slices.IndexFunc(messageChannels, func(m messageChannel) bool { return m.ID == r.param("channel") })
	if at < 0 {
		return errNotFound
	}
	channel, to := messageChannels[at], ""
	ctx, cancel := context.WithTimeout(r.ctx(), mailTimeout)
	defer cancel()
	var err error
	if channel.ID == "mail" {
		to = " to " + r.account.Email
		err = c.Mail.Send(ctx, r.account.Email, "Test message of Basegate", "This is a test message of "+c.settings.Load().PublicURL.String()+"\n")
	} else {
		err = c.TestWebhook(ctx, channel.ID, r.account.Email)
	}
	if err != nil {
		p := invalid(fmt.Sprintf("%s: the test message was not sent: %v.", channel.Name, err))
		return c.showSettings(r, p.status, p)
	}
	return c.redirectDone(r, nil, "/admin/settings", channel.Name+": the test message was accepted"+to+".")
}
