package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// payload is the JSON that the webhook receives. Slack and Mattermost show its text.
type payload struct {
	Text    string `json:"text"`
	Event   string `json:"event"`
	Time    string `json:"time"`
	Gateway string `json:"gateway"`
	Model   string `json:"model,omitempty"`
	Backend string `json:"backend,omitempty"`
	Account string `json:"account,omitempty"`
	Key     string `json:"key,omitempty"`
	Percent int    `json:"percent,omitempty"`
	Detail  string `json:"detail,omitempty"`
}

// text returns what people read: the text with what completes it.
func (n *Notice) text() string {
	text := n.Text
	switch {
	case n.Key != "":
		text += fmt.Sprintf(" (key %s of %s)", n.Key, n.Account)
	case n.Account != "":
		text += fmt.Sprintf(" (%s)", n.Account)
	}
	if n.Detail != "" {
		text += ": " + n.Detail
	}
	return text
}

// callWebhook sends a notice to the webhook. Its address may be a secret, so no error contains it.
func (n *Notifier) callWebhook(ctx context.Context, notice *Notice) error {
	s := n.settings.Load()
	if s.Webhook == nil {
		return nil // a reload has removed it
	}
	body, err := json.Marshal(payload{
		Text: notice.text(), Event: notice.Kind, Time: notice.Time.UTC().Format(time.RFC3339), Gateway: s.PublicURL,
		Model: notice.Model, Backend: notice.Backend, Account: notice.Account, Key: notice.Key, Percent: notice.Percent,
		Detail: notice.Detail,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errPermanent, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Webhook.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: the address of the webhook is not valid", errPermanent)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := n.client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection is closed in order; the status counts
	switch {
	case resp.StatusCode < http.StatusMultipleChoices:
		return nil
	case resp.StatusCode >= http.StatusInternalServerError, resp.StatusCode == http.StatusTooManyRequests,
		resp.StatusCode == http.StatusRequestTimeout:
		return fmt.Errorf("status %d", resp.StatusCode)
	default:
		return fmt.Errorf("%w: status %d", errPermanent, resp.StatusCode)
	}
}

// withoutURL returns the cause of an error of http.Client, which names the address.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return errors.New("the request failed")
}

// sendMails mails a notice to every recipient. If it fails for some, the attempt has failed for those only.
func (n *Notifier) sendMails(ctx context.Context, notice *Notice) error {
	recipients, err := n.deps.Recipients(ctx)
	if err != nil {
		return fmt.Errorf("find recipients: %w", err)
	}
	text := strings.Join([]string{notice.text(), "", n.settings.Load().PublicURL + "/admin/overview", ""}, "\n")
	var all error
	for _, to := range recipients {
		if notice.mailed[to] {
			continue
		}
		if err := n.deps.Mailer.Send(ctx, to, "Basegate: "+notice.Text, text); err != nil {
			all = errors.Join(all, err)
			continue
		}
		if notice.mailed == nil {
			notice.mailed = map[string]bool{}
		}
		notice.mailed[to] = true
	}
	return all
}
