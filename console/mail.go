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

// Results of mailing an invitation.
const (
	mailOff    = ""
	mailSent   = "sent"
	mailFailed = "failed"
)

// mailTimeout limits how long the response waits for the mail server.
const mailTimeout = 15 * time.Second

// mailInvitation mails an invitation if a mail server is configured. If that fails, the administrator can still pass the
// address on.
func (c *Console) mailInvitation(r *request, email, link string) string {
	if c.mail == nil || !c.mail.Enabled() {
		return mailOff
	}
	ctx, cancel := context.WithTimeout(r.ctx(), mailTimeout)
	defer cancel()
	text := fmt.Sprintf("%s has invited you to Basegate, the gateway to base models at\n%s\n\nChoose your password here, within seven days:\n\n%s\n\n"+
		"Whoever opens this address sets the password, so do not pass it on. If you did not expect this, ignore it.\n",
		r.account.Email, c.settings.Load().PublicURL, link)
	if err := c.mail.Send(ctx, email, "Your invitation to Basegate", text); err != nil {
		c.log.Warn("an invitation could not be mailed", zap.String("email", email), zap.Error(err))
		return mailFailed
	}
	return mailSent
}
