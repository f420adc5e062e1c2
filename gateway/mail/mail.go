// Package mail sends plain-text mails over SMTP, with go-mail. A connection is encrypted before anything is sent, except
// to a server on the same machine. Texts and recipients are left to other packages.
package mail

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	gomail "github.com/wneessen/go-mail"

	"basegate/gateway/config"
)

// ErrDisabled is returned by Send if no server is configured.
var ErrDisabled = errors.New("no mail server is configured")

// Settings name the mail server. They are disabled without SMTP.
type Settings struct {
	config.Mail

	RootTLS *tls.Config // of the connection; nil: the system's certificate authorities
}

// timeout limits the connection and each command.
const timeout = 10 * time.Second

// Mailer sends mails. It is safe for concurrent use.
type Mailer struct{ settings atomic.Pointer[Settings] }

// New returns a Mailer.
func New(s Settings) *Mailer {
	m := new(Mailer)
	m.Reload(s)
	return m
}

// Reload replaces the settings.
func (m *Mailer) Reload(s Settings) { m.settings.Store(&s) }

// Enabled reports whether a server is configured.
func (m *Mailer) Enabled() bool { return m.settings.Load().SMTP != nil }

// Send sends a mail to one address. The error may be ErrDisabled.
func (m *Mailer) Send(ctx context.Context, to, subject, text string) error {
	s := m.settings.Load()
	if s.SMTP == nil {
		return ErrDisabled
	}
	message := gomail.NewMsg()
	helo := s.helo(ctx)
	if err := message.From(cmp.Or(s.From, "basegate@"+helo)); err != nil {
		return fmt.Errorf("send mail: sender: %w", err)
	}
	if err := message.To(to); err != nil {
		return fmt.Errorf("send mail: recipient: %w", err)
	}
	message.Subject(subject)
	message.SetDate()
	sender := message.GetFrom()[0].Address
	message.SetMessageIDWithValue(rand.Text() + sender[strings.LastIndexByte(sender, '@'):])
	message.SetGenHeader("Auto-Submitted", "auto-generated") // no vacation replies
	message.SetBodyString(gomail.TypeTextPlain, text)
	client, err := gomail.NewClient(s.SMTP.Hostname(), append(s.options(), gomail.WithHELO(helo))...)
	if err != nil {
		return fmt.Errorf("send mail: %w", err)
	}
	if err := client.DialAndSendWithContext(ctx, message); err != nil {
		return fmt.Errorf("send mail: %w", err)
	}
	return nil
}

func (s *Settings) options() []gomail.Option {
	port, _ := strconv.Atoi(s.SMTP.Port()) // config has checked it
	options := []gomail.Option{gomail.WithPort(port), gomail.WithTimeout(timeout)}
	switch {
	case s.SMTP.Scheme == "smtps":
		options = append(options, gomail.WithSSL())
	case config.IsLoopback(s.SMTP.Hostname()): // nothing travels over a network
		options = append(options, gomail.WithTLSPolicy(gomail.TLSOpportunistic))
	default:
		options = append(options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	}
	if s.RootTLS != nil {
		options = append(options, gomail.WithTLSConfig(s.RootTLS))
	}
	if s.Username != "" {
		options = append(options,
			gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover), gomail.WithUsername(s.Username), gomail.WithPassword(s.Password.Reveal()))
	}
	return options
}
