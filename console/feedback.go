package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"basegate/database"
)

// The bounds of feedback, in characters.
const (
	maxMessage   = 5000
	maxRequestID = 100
	maxPage      = 300
)

// feedback is what somebody has written.
type feedback struct {
	Time      time.Time
	AccountID string // empty where nobody was signed in
	Email     string // of that account
	Page      string // where it was written
	RequestID string // what it is about; may be empty
	Message   string
}

// feedbackForm is the page on which it is written.
type feedbackForm struct {
	Page, RequestID, Message string
	Problem                  string
}

func (c *Console) feedbackPage(r *request) error {
	return c.render(r, "feedback", "Feedback", feedbackForm{Page: local(r.query("page")), RequestID: r.query("request_id")})
}

func (c *Console) sendFeedback(r *request) error {
	if !r.signedIn() {
		if retryIn := c.formLimiter.allow(c.settings.Load().ClientAddress(r.Request())); retryIn > 0 {
			return errTooOften(retryIn)
		}
	}
	f := feedback{
		Time: c.clock(), AccountID: r.account.ID, Email: r.account.Email,
		Page: local(r.field("page")), RequestID: r.field("request_id"), Message: r.field("message"),
	}
	if problem := f.problem(); problem != "" {
		form := feedbackForm{f.Page, f.RequestID, f.Message, problem}
		return c.renderStatus(r, http.StatusUnprocessableEntity, "feedback", "Feedback", form)
	}
	if err := c.storeFeedback(r.ctx(), f); err != nil {
		return err
	}
	c.announce(r.ctx(), f)
	return c.render(r, "feedback-sent", "Feedback", f)
}

// problem says what is wrong with it, or nothing.
func (f feedback) problem() string {
	switch {
	case f.Message == "":
		return "There is nothing in it. Write what you have noticed."
	case !utf8.ValidString(f.Message + f.RequestID + f.Page):
		return "This is not text."
	case utf8.RuneCountInString(f.Message) > maxMessage:
		return "It is too long: up to " + number(maxMessage) + " characters are taken."
	case utf8.RuneCountInString(f.RequestID) > maxRequestID || len(f.Page) > maxPage:
		return "This is no request id. One begins with req_ and stands in the header X-Request-Id of every answer."
	}
	return ""
}

func (c *Console) storeFeedback(ctx context.Context, f feedback) error {
	const text = `INSERT INTO feedback (id, time, account_id, page, request_id, message) VALUES ($1, $2, $3, $4, $5, $6)`
	err := c.db.WriteGrouped(ctx, func(tx database.Tx) error {
		_, err := tx.ExecContext(ctx, text, "fb_"+rand.Text(), f.Time.UnixMicro(), f.AccountID, f.Page, f.RequestID, f.Message)
		return err
	})
	if err != nil {
		return fmt.Errorf("store feedback: %w", err)
	}
	return nil
}

// received lists the last feedback, the newest first.
func (c *Console) received(ctx context.Context, most int) ([]feedback, error) {
	const text = `SELECT time, account_id, page, request_id, message FROM feedback ORDER BY time DESC, id DESC LIMIT $1`
	rows, err := c.db.Read().QueryContext(ctx, text, most)
	if err != nil {
		return nil, fmt.Errorf("read feedback: %w", err)
	}
	defer rows.Close()
	var all []feedback
	for rows.Next() {
		var f feedback
		var at int64
		if err := rows.Scan(&at, &f.AccountID, &f.Page, &f.RequestID, &f.Message); err != nil {
			return nil, fmt.Errorf("read feedback: %w", err)
		}
		f.Time = time.UnixMicro(at).UTC()
		all = append(all, f)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read feedback: %w", err)
	}
	return all, nil
}

// webhookTimeout bounds how long whoever sends feedback waits for the webhook.
const webhookTimeout = 3 * time.Second

// announce tells the webhook, where one is configured. It is stored by then, so a webhook that fails is logged and
// nobody's concern who has written it.
func (c *Console) announce(ctx context.Context, f feedback) {
	hook := c.settings.Load().FeedbackWebhook
	if hook == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	body, err := json.Marshal(f.announcement())
	if err != nil {
		c.log.Warn("announce feedback", zap.Error(err))
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, hook.String(), bytes.NewReader(body))
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
		err = c.post(req)
	}
	if err != nil { // the error of the client names the address, which may be a secret
		c.log.Warn("the feedback webhook has failed", zap.String("host", hook.Host))
	}
}

func (c *Console) post(req *http.Request) error {
	resp, err := c.webhook.Do(req)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	defer resp.Body.Close()
	if _, err := io.CopyN(io.Discard, resp.Body, 4<<10); err != nil && err != io.EOF { //nolint:errorlint // CopyN returns it as it is
		return fmt.Errorf("read answer: %w", err)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("it answered %d", resp.StatusCode)
	}
	return nil
}

// announcement is what a webhook gets. Chat servers show "text" (Slack, Mattermost) or "content" (Discord).
func (f feedback) announcement() map[string]string {
	from := f.Email
	if from == "" {
		from = "somebody who is not signed in"
	}
	lines := []string{"Feedback from " + from + ", on " + f.Page}
	if f.RequestID != "" {
		lines = append(lines, "Request "+f.RequestID)
	}
	text := strings.Join(append(lines, f.Message), "\n")
	return map[string]string{
		"text": text, "content": text, "time": f.Time.UTC().Format(time.RFC3339),
		"account": f.Email, "page": f.Page, "request_id": f.RequestID, "message": f.Message,
	}
}
