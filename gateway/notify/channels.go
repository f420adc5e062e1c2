package notify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// payload is the JSON that the webhook receives.
type payload struct {
	chat
	Event   string `json:"event"`
	Time    string `json:"time"`
	Gateway string `json:"gateway"`
	*Notice
}

// Feedback is a message of a user to the administrators.
type Feedback struct {
	Time      time.Time `json:"-"`
	Account   string    `json:"account"` // e-mail address; empty if nobody was signed in
	Page      string    `json:"page"`    // path of the page it was sent from
	RequestID string    `json:"request_id"`
	Message   string    `json:"message"`
}

// feedbackPayload is the JSON that the webhook of feedback receives.
type feedbackPayload struct {
	chat
	Time string `json:"time"`
	*Feedback
}

func (f *Feedback) text() string {
	lines := []string{"Feedback from " + cmp.Or(f.Account, "somebody who is not signed in") + ", on " + f.Page}
	if f.RequestID != "" {
		lines = append(lines, "Request "+f.RequestID)
	}
	return strings.Join(append(lines, f.Message), "\n")
}

// text returns what people read: the text with what completes it, and how many further notices are not sent.
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
	if n.more > 0 {
		text += fmt.Sprintf(" (and %d more)", n.more)
	}
	return text
}

func (n *Notifier) callWebhook(ctx context.Context, notice *Notice) error {
	s := n.settings.Load()
	if s.Webhook == nil {
		return nil // a reload has removed it
	}
	return n.post(ctx, s.Webhook, payload{
		newChat(notice.text(), s.Webhook), notice.Kind, notice.Time.UTC().Format(time.RFC3339), s.PublicURL, notice,
	})
}

func (n *Notifier) sendFeedback(ctx context.Context, notice *Notice) error {
	webhook, f := n.settings.Load().Feedback, notice.feedback
	if webhook == nil {
		return nil // a reload has removed it
	}
	return n.post(ctx, webhook, feedbackPayload{newChat(notice.text(), webhook), f.Time.UTC().Format(time.RFC3339), f})
}

// post sends JSON to a webhook. Its address may be a secret, so no error contains it.
func (n *Notifier) post(ctx context.Context, webhook *url.URL, payload any) error {
	body, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("%w: %w", errPermanent, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, webhook.String(), bytes.NewReader(body))
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
		if slices.Contains(notice.mailed, to) {
			continue
		}
		if err := n.deps.Mailer.Send(ctx, to, "Basegate: "+notice.Text, text); err != nil {
			all = errors.Join(all, err)
			continue
		}
		notice.mailed = append(notice.mailed, to)
	}
	return all
}
