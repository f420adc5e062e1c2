package console

import (
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

const feedbackPageSize = 50

type adminFeedbackView struct {
	Status   string // shown; empty: any
	Statuses []string
	Rows     []feedback
	pager
	Mail bool // replies are mailed too
}

func (c *Console) adminFeedbackPage(r *request) error {
	view := adminFeedbackView{Status: r.query("status"), Statuses: feedbackStatuses, Mail: c.Mail.Enabled()}
	until := c.clock()
	if micros, err := strconv.ParseInt(r.query("after"), 10, 64); err == nil {
		until = time.UnixMicro(micros)
	}
	rows, err := c.listFeedback(r.ctx(), view.Status, until, feedbackPageSize+1)
	if err != nil {
		return err
	}
	next := ""
	if len(rows) > feedbackPageSize {
		next = strconv.FormatInt(rows[feedbackPageSize].Time.UnixMicro(), 10)
		rows = rows[:feedbackPageSize]
	}
	view.pager = r.pager(queryOf(map[string]string{"status": view.Status}), next)
	known := c.names(r)
	for i := range rows {
		rows[i].Email = known.Account(rows[i].AccountID)
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
	if err := c.AuditLog.Record(r.ctx(), "answer feedback", f.ID, detail); err != nil {
		return err
	}
	message := "Saved."
	if changed && f.Reply != "" {
		message = c.announceReply(r, f)
	}
	return c.redirectDone(r, nil, "/admin/feedback#"+f.ID, message)
}

// announceReply mails a reply if a mail server is configured, and returns what to tell the administrator.
func (c *Console) announceReply(r *request, f feedback) string {
	email := c.Keys.Email(f.AccountID)
	if email == "" {
		return "Saved."
	}
	text := r.account.Email + " has replied to your feedback of " + f.Time.Format("2 Jan 2006, 15:04") + " UTC:\n\n" + f.Reply +
		"\n\nYour feedback:\n\n" + f.Message + "\n\n" + c.settings.Load().PublicURL.JoinPath("feedback").String() + "\n"
	switch c.sendMail(r, email, "A reply to your feedback about Basegate", text) {
	case mailSent:
		return "Saved and mailed to " + email + "."
	case mailFailed:
		return "Saved, but the mail to " + email + " failed. The reply is in the console."
	}
	return "Saved. " + email + " sees the reply in the console."
}
