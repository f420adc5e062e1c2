package console

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
	"unicode/utf8"

	"go.uber.org/zap"
)

// Limits of feedback.
const (
	maxMessage   = 5000 // characters
	maxRequestID = 100  // characters
	maxPagePath  = 300  // bytes
)

// feedback is a message to the administrators, and what they have made of it.
type feedback struct {
	ID        string
	Time      time.Time
	AccountID string // empty if nobody was signed in
	Email     string // of that account
	Page      string // path of the page it was sent from
	RequestID string // of the request it is about; may be empty
	Message   string
	Status    string // one of feedbackStatuses
	Reply     string // to the account; may be empty
	RepliedBy string // the administrator's address; empty if there is no reply
	RepliedAt time.Time
}

// feedbackStatuses are the statuses of feedback, in the order of the form.
var feedbackStatuses = []string{"open", "in progress", "done", "declined"}

// feedbackForm is the data of the feedback page.
type feedbackForm struct {
	Page, RequestID, Message string
	Problem                  *problem   // why it was not sent; nil if it was not tried
	Own                      []feedback // what the user has sent before
}

// maxOwnFeedback limits the list of what a user has sent.
const maxOwnFeedback = 50

func (c *Console) feedbackPage(r *request) error {
	return c.showFeedback(r, http.StatusOK, feedbackForm{Page: localPath(r.query("page")), RequestID: r.query("request_id")})
}

// showFeedback renders the form and what the user has sent before. The replies then count as read.
func (c *Console) showFeedback(r *request, status int, form feedbackForm) (err error) {
	if r.signedIn() {
		if form.Own, err = c.ownFeedback(r.ctx(), r.account.ID, maxOwnFeedback); err != nil {
			return err
		}
		if r.Request().Method == http.MethodGet {
			if err := c.markRepliesRead(r.ctx(), r.account.ID); err != nil {
				return err
			}
		}
	}
	return c.renderStatus(r, status, "feedback", "Feedback", form)
}

// allowFeedback returns a problem if too many clients of the network that are not signed in have sent forms.
func (c *Console) allowFeedback(r *request) error {
	if r.signedIn() {
		return nil
	}
	return c.allowAnonymousForm(r)
}

func (c *Console) sendFeedback(r *request) error {
	f := feedback{
		Time: c.clock(), AccountID: r.account.ID, Email: r.account.Email,
		Page: localPath(r.field("page")), RequestID: r.field("request_id"), Message: r.field("message"),
	}
	if problem := f.validate(); problem != nil {
		form := feedbackForm{Page: f.Page, RequestID: f.RequestID, Message: f.Message, Problem: problem}
		return c.showFeedback(r, http.StatusUnprocessableEntity, form)
	}
	if err := c.storeFeedback(r.ctx(), f); err != nil {
		return err
	}
	c.callWebhook(r.ctx(), f)
	if !r.signedIn() {
		return r.redirect("/feedback/sent?" + url.Values{"page": {f.Page}}.Encode())
	}
	return c.redirectDone(r, f.Page, "Thank you for the feedback. The administrators can see it.")
}

// feedbackSent confirms feedback of somebody who is not signed in.
func (c *Console) feedbackSent(r *request) error {
	return c.render(r, "feedback-sent", "Feedback", feedbackForm{Page: localPath(r.query("page"))})
}

// validate returns what is wrong with the feedback, or nil.
func (f feedback) validate() *problem {
	switch {
	case f.Message == "":
		return invalid("Write a message first.").on("message")
	case !utf8.ValidString(f.Message + f.RequestID + f.Page):
		return invalid("The message has characters that are not text.").on("message")
	case utf8.RuneCountInString(f.Message) > maxMessage:
		return invalid("The message is too long: the limit is " + formatNumber(maxMessage) + " characters.").on("message")
	case utf8.RuneCountInString(f.RequestID) > maxRequestID || len(f.Page) > maxPagePath:
		return invalid("This is not a request ID. It begins with req_ and is in the header X-Request-Id of every response.").on("request_id")
	}
	return nil
}

// webhookTimeout limits how long the response waits for the webhook.
const webhookTimeout = 3 * time.Second

// callWebhook sends the feedback to the webhook, if one is configured. The feedback is already stored, so an error of
// the webhook is only logged.
func (c *Console) callWebhook(ctx context.Context, f feedback) {
	webhook := c.settings.Load().FeedbackWebhook
	if webhook == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	body, err := json.Marshal(f.webhookBody())
	if err != nil {
		c.log.Warn("encode feedback for the webhook", zap.Error(err))
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, webhook.String(), bytes.NewReader(body))
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
		err = c.sendToWebhook(req)
	}
	if err != nil { // the error contains the URL, which may hold a secret
		c.log.Warn("feedback webhook failed", zap.String("host", webhook.Host))
	}
}

func (c *Console) sendToWebhook(req *http.Request) error {
	resp, err := c.webhook.Do(req)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	defer resp.Body.Close()
	if _, err := io.CopyN(io.Discard, resp.Body, 4<<10); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read response: %w", err)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

// webhookBody returns the JSON fields that the webhook receives. Chat servers show "text" (Slack, Mattermost) or
// "content" (Discord).
func (f feedback) webhookBody() map[string]string {
	sender := f.Email
	if sender == "" {
		sender = "somebody who is not signed in"
	}
	lines := []string{"Feedback from " + sender + ", on " + f.Page}
	if f.RequestID != "" {
		lines = append(lines, "Request "+f.RequestID)
	}
	text := strings.Join(append(lines, f.Message), "\n")
	return map[string]string{
		"text": text, "content": text, "time": f.Time.UTC().Format(time.RFC3339),
		"account": f.Email, "page": f.Page, "request_id": f.RequestID, "message": f.Message,
	}
}
