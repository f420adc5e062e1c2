package console

import (
	"net/http"
	"net/url"
	"time"
	"unicode/utf8"

	"basegate/gateway/notify"
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

type feedbackForm struct {
	Page, RequestID, Message string
	Problem                  *problem   // why it was not sent; nil if it was not tried
	Own                      []feedback // what the user has sent before
}

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
	c.Feedback(notify.Feedback{Time: f.Time, Account: f.Email, Page: f.Page, RequestID: f.RequestID, Message: f.Message})
	if !r.signedIn() {
		return r.redirect("/feedback/sent?" + url.Values{"page": {f.Page}}.Encode())
	}
	return c.redirectDone(r, nil, f.Page, "Thank you for the feedback. The administrators can see it.")
}

// feedbackSent confirms feedback of somebody who is not signed in.
func (c *Console) feedbackSent(r *request) error {
	return c.render(r, "feedback-sent", "Feedback", feedbackForm{Page: localPath(r.query("page"))})
}

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
