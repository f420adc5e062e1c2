// Package mail sends plain-text mails over SMTP, with go-mail. A connection is encrypted before anything is sent, except
// to a server on the same machine. Texts and recipients are left to other packages.
package mail

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	gomail "github.com/wneessen/go-mail"
)

// ErrDisabled is returned by Send if no server is configured.
var ErrDisabled = errors.New("no mail server is configured")

// Settings name the mail server. They are disabled if Host is empty.
type Settings struct {
	Host        string
	Port        int
	ImplicitTLS bool   // smtps; otherwise STARTTLS is required, except on this machine
	Username    string // empty: without authentication
	Password    string
	From        string // the sender's address, with or without a name
	Helo        string // what the gateway calls itself; empty: the name or the address of this machine

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
func (m *Mailer) Enabled() bool { return m.settings.Load().Host != "" }

// Send sends a mail to one address. The error may be ErrDisabled.
func (m *Mailer) Send(ctx context.Context, to, subject, text string) error {
	s := m.settings.Load()
	if s.Host == "" {
		return ErrDisabled
	}
	message := gomail.NewMsg()
	if err := message.From(s.From); err != nil {
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
	client, err := gomail.NewClient(s.Host, append(s.options(), gomail.WithHELO(s.helo(ctx)))...)
	if err != nil {
		return fmt.Errorf("send mail: %w", err)
	}
	if err := client.DialAndSendWithContext(ctx, message); err != nil {
		return fmt.Errorf("send mail: %w", err)
	}
	return nil
}

func (s *Settings) options() []gomail.Option {
	options := []gomail.Option{gomail.WithPort(s.Port), gomail.WithTimeout(timeout)}
	switch {
	case s.ImplicitTLS:
		options = append(options, gomail.WithSSL())
	case s.local():
		options = append(options, gomail.WithTLSPolicy(gomail.TLSOpportunistic))
	default:
		options = append(options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	}
	if s.RootTLS != nil {
		options = append(options, gomail.WithTLSConfig(s.RootTLS))
	}
	if s.Username != "" {
		options = append(options,
			gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover), gomail.WithUsername(s.Username), gomail.WithPassword(s.Password))
	}
	return options
}

// local reports whether the server is on this machine, so that nothing travels over a network.
func (s *Settings) local() bool {
	if s.Host == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(s.Host)
	return err == nil && address.IsLoopback()
}
