package console

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"
)

// feedbackPageSize is the number of messages on a page of the administrators.
const feedbackPageSize = 50

// adminFeedbackView is the data of the administrators' page of feedback.
type adminFeedbackView struct {
	Status   string // shown; empty: any
	Statuses []string
	Rows     []feedback
	Newer    bool   // this is not the first page
	Older    string // URL of the next page; empty if there is none
	Mail     bool   // replies are mailed too
}

func (c *Console) adminFeedbackPage(r *request) error {
	view := adminFeedbackView{Status: r.query("status"), Statuses: feedbackStatuses, Mail: c.mail != nil && c.mail.Enabled()}
	until := c.clock()
	if micros, err := strconv.ParseInt(r.query("until"), 10, 64); err == nil {
		until, view.Newer = time.UnixMicro(micros), true
	}
	rows, err := c.listFeedback(r.ctx(), view.Status, until, feedbackPageSize+1)
	if err != nil {
		return err
	}
	if len(rows) > feedbackPageSize {
		q := url.Values{"until": {strconv.FormatInt(rows[feedbackPageSize].Time.UnixMicro(), 10)}}
		if view.Status != "" {
			q.Set("status", view.Status)
		}
		rows, view.Older = rows[:feedbackPageSize], "/admin/feedback?"+q.Encode()
	}
	known, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	for i := range rows {
		rows[i].Email = known.account(rows[i].AccountID)
	}
	view.Rows = rows
	return c.render(r, "admin-feedback", "Feedback received", view)
}

// answerFeedback sets the status of feedback and the reply to it.
func (c *Console) answerFeedback(r *request) error {
	f, err := c.findFeedback(r.ctx(), r.param("feedback"))
	if err != nil {
		return err
	}
	before := f
	f.Status, f.Reply = r.field("status"), r.field("reply")
	switch {
	case !slices.Contains(feedbackStatuses, f.Status):
		return invalid("There is no such status.")
	case utf8.RuneCountInString(f.Reply) > maxMessage || !utf8.ValidString(f.Reply):
		return invalid("The reply is too long: the limit is " + formatNumber(maxMessage) + " characters.")
	case f.Reply != "" && f.AccountID == "":
		return invalid("This was sent by somebody who was not signed in, so nobody can read a reply.")
	}
	changed := f.Reply != before.Reply
	if changed {
		f.RepliedBy, f.RepliedAt = r.account.Email, c.clock()
		if f.Reply == "" {
			f.RepliedBy, f.RepliedAt = "", time.Time{}
		}
	}
	if err := c.updateFeedback(r.ctx(), f, changed); err != nil {
		return err
	}
	detail := before.Status + " → " + f.Status
	if changed {
		detail += ", reply changed" // its text is the account's
	}
	if err := c.auditLog.Record(r.ctx(), "answer feedback", f.ID, detail); err != nil {
		return err
	}
	message := words["saved"]
	if changed && f.Reply != "" {
		message = c.announceReply(r, f)
	}
	return c.redirectDone(r, "/admin/feedback#"+f.ID, message)
}

// announceReply mails a reply if a mail server is configured, and returns what to tell the administrator.
func (c *Console) announceReply(r *request, f feedback) string {
	known, err := c.readNames(r.ctx(), r.account)
	email, ok := known.emails[f.AccountID]
	if err != nil || !ok {
		return "Saved."
	}
	if c.mail == nil || !c.mail.Enabled() {
		return "Saved. " + email + " sees the reply in the console."
	}
	ctx, cancel := context.WithTimeout(r.ctx(), mailTimeout)
	defer cancel()
	text := r.account.Email + " has replied to your feedback of " + f.Time.Format("2 Jan 2006, 15:04") + " UTC:\n\n" + f.Reply +
		"\n\nYour feedback:\n\n" + f.Message + "\n\n" + c.settings.Load().PublicURL.JoinPath("feedback").String() + "\n"
	if err := c.mail.Send(ctx, email, "A reply to your feedback about Basegate", text); err != nil {
		c.log.Warn("a reply to feedback could not be mailed", zap.String("email", email), zap.Error(err))
		return "Saved, but the mail to " + email + " failed. The reply is in the console."
	}
	return "Saved and mailed to " + email + "."
}
