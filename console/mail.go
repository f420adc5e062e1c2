package console

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// Mailer sends mails. Package mail implements it.
type Mailer interface {
	Enabled() bool
	Send(ctx context.Context, to, subject, text string) error
}

// Results of a mail.
const (
	mailOff    = ""
	mailSent   = "sent"
	mailFailed = "failed"
)

// mailTimeout limits how long the response waits for the mail server.
const mailTimeout = 15 * time.Second

// sendMail sends a mail if a mail server is configured.
func (c *Console) sendMail(r *request, to, subject, text string) string {
	if !c.Mail.Enabled() {
		return mailOff
	}
	ctx, cancel := context.WithTimeout(r.ctx(), mailTimeout)
	defer cancel()
	if err := c.Mail.Send(ctx, to, subject, text); err != nil {
		c.Log.Warn("a mail could not be sent", zap.String("subject", subject), zap.String("email", to), zap.Error(err))
		return mailFailed
	}
	return mailSent
}

// mailInvitation mails an invitation. If that fails, the administrator can still pass the address on.
func (c *Console) mailInvitation(r *request, email, link string) string {
	return c.sendMail(r, email, "Your invitation to Basegate", fmt.Sprintf(
		"%s has invited you to Basegate, the gateway to base models at\n%s\n\nChoose your password here, within seven days:\n\n%s\n\n"+
			"Whoever opens this address sets the password, so do not pass it on. If you did not expect this, ignore it.\n",
		r.account.Email, c.settings.Load().PublicURL, link))
}
