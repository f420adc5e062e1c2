package mail_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	netmail "net/mail"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"go.uber.org/goleak"

	"basegate/gateway/config"
	"basegate/gateway/mail"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a mail server that keeps what it receives.
type server struct {
	mu       sync.Mutex
	messages []message
	tls      *tls.Config // that clients trust
	port     int
}

type message struct {
	from, to, data string
	user           string // who has authenticated; empty if nobody has
	encrypted      bool
	helo           string
}

func (s *server) NewSession(c *smtp.Conn) (smtp.Session, error) {
	_, encrypted := c.TLSConnectionState()
	return &session{server: s, message: message{encrypted: encrypted, helo: c.Hostname()}}, nil
}

func (s *server) received() []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages
}

type session struct {
	*server
	message message
}

func (*session) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != "base" || password != "letmein" {
			return smtp.ErrAuthFailed
		}
		s.message.user = user
		return nil
	}), nil
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error { s.message.from = from; return nil }
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error   { s.message.to = to; return nil }
func (*session) Reset()                                        {}
func (*session) Logout() error                                 { return nil }

func (s *session) Data(r io.Reader) error {
	data, err := io.ReadAll(r)
	s.message.data = string(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages = append(s.messages, s.message)
	return err
}

// startServer starts a mail server: with STARTTLS, with TLS from the begin, or without TLS.
func startServer(t *testing.T, starttls, implicit bool) *server {
	t.Helper()
	https := httptest.NewUnstartedServer(nil)
	https.StartTLS() // for its certificate
	certificate := https.TLS.Certificates[0]
	roots := x509.NewCertPool()
	roots.AddCert(https.Certificate())
	https.Close()
	s := &server{tls: &tls.Config{RootCAs: roots, ServerName: "example.com"}}
	own := &tls.Config{Certificates: []tls.Certificate{certificate}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.port = listener.Addr().(*net.TCPAddr).Port
	if implicit {
		listener = tls.NewListener(listener, own)
	}
	backend := smtp.NewServer(s)
	backend.Domain, backend.AllowInsecureAuth = "example.com", true
	if starttls {
		backend.TLSConfig = own
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		backend.Serve(listener)
	}()
	t.Cleanup(func() { backend.Close(); <-done })
	return s
}

func (s *server) settings(host string) mail.Settings {
	server := &url.URL{Scheme: "smtp", Host: net.JoinHostPort(host, strconv.Itoa(s.port))}
	return mail.Settings{Mail: config.Mail{SMTP: server, From: "basegate@example.org", Helo: "gate.example.org"}, RootTLS: s.tls}
}

func TestSenderIsTheGatewayUnlessOneIsConfigured(t *testing.T) {
	s := startServer(t, true, false)
	settings := s.settings("127.0.0.1")
	settings.From = ""
	for _, helo := range []string{"gate.example.org", "[192.0.2.1]"} {
		settings.Helo = helo
		if err := mail.New(settings).Send(t.Context(), "ada@example.org", "Test", "Hello"); err != nil {
			t.Fatal(err)
		}
		if got := s.received(); got[len(got)-1].from != "basegate@"+helo {
			t.Errorf("got sender %q at %s", got[len(got)-1].from, helo)
		}
	}
}

func TestMailIsSentEncryptedAndAuthenticated(t *testing.T) {
	for name, implicit := range map[string]bool{"STARTTLS": false, "implicit TLS": true} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, !implicit, implicit)
			settings := s.settings("127.0.0.1")
			settings.Username, settings.Password = "base", config.NewSecret("letmein")
			if implicit {
				settings.SMTP.Scheme = "smtps"
			}
			m := mail.New(settings)
			if !m.Enabled() {
				t.Error("the mailer is not enabled")
			}
			if err := m.Send(t.Context(), "ada@example.org", "Invitation – é", "Hello\nhttps://gate.example.org/x"); err != nil {
				t.Fatal(err)
			}
			got := s.received()
			if len(got) != 1 {
				t.Fatalf("got %d mails, want 1", len(got))
			}
			if got[0].helo != "gate.example.org" {
				t.Errorf("the gateway calls itself %q, want gate.example.org", got[0].helo)
			}
			if got[0].from != "basegate@example.org" || got[0].to != "ada@example.org" || got[0].user != "base" || !got[0].encrypted {
				t.Errorf("got %+v, want it from basegate to ada, encrypted and authenticated", got[0])
			}
			for _, want := range []string{"https://gate.example.org/x", "Auto-Submitted: auto-generated", "Message-ID:", "Date:"} {
				if !strings.Contains(got[0].data, want) {
					t.Errorf("%q is missing in:\n%s", want, got[0].data)
				}
			}
		})
	}
}

func TestSenderMayHaveAName(t *testing.T) {
	s := startServer(t, true, false)
	settings := s.settings("127.0.0.1")
	settings.From = "Größte GPU <gate@example.org>"
	if err := mail.New(settings).Send(t.Context(), "ada@example.org", "x", "y"); err != nil {
		t.Fatal(err)
	}
	got := s.received()[0]
	if got.from != "gate@example.org" {
		t.Errorf("the sender of the envelope is %q, want gate@example.org", got.from)
	}
	header, err := netmail.ReadMessage(strings.NewReader(got.data))
	if err != nil {
		t.Fatal(err)
	}
	from, err := header.Header.AddressList("From")
	if err != nil || len(from) != 1 || *from[0] != (netmail.Address{Name: "Größte GPU", Address: "gate@example.org"}) {
		t.Errorf("got the sender %v and error %v, want Größte GPU <gate@example.org>", from, err)
	}
	if id := header.Header.Get("Message-ID"); !strings.HasSuffix(id, "@example.org>") {
		t.Errorf("got Message-ID %q, want one of example.org", id)
	}
}

// Servers refuse a client that calls itself by a bare host name.
func TestGatewayCallsItselfByAQualifiedNameOrAnAddress(t *testing.T) {
	s := startServer(t, true, false)
	settings := s.settings("127.0.0.1")
	settings.Helo = ""
	if err := mail.New(settings).Send(t.Context(), "ada@example.org", "x", "y"); err != nil {
		t.Fatal(err)
	}
	if helo := s.received()[0].helo; helo != "[127.0.0.1]" && !regexp.MustCompile(`^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$`).MatchString(helo) {
		t.Errorf("the gateway calls itself %q, want a qualified name or [127.0.0.1]", helo)
	}
}

func TestMailIsNotSentInTheClearToAnotherMachine(t *testing.T) {
	s := startServer(t, false, false)
	name, err := nonLoopbackName(t)
	if err != nil {
		t.Skip(err)
	}
	if err := mail.New(s.settings(name)).Send(t.Context(), "ada@example.org", "x", "y"); err == nil {
		t.Error("a mail is sent without encryption, want an error")
	}
	if got := s.received(); len(got) != 0 {
		t.Errorf("the server has received %+v", got)
	}
	if err := mail.New(s.settings("127.0.0.1")).Send(t.Context(), "ada@example.org", "x", "y"); err != nil {
		t.Errorf("to this machine, without encryption: got %v, want it sent", err)
	}
}

// nonLoopbackName returns a name that the mailer does not know to be this machine, and that resolves to loopback.
func nonLoopbackName(t *testing.T) (string, error) {
	t.Helper()
	const name = "localhost."
	if _, err := net.DefaultResolver.LookupHost(t.Context(), name); err != nil {
		return "", errors.New("the resolver does not know localhost with a dot at the end")
	}
	return name, nil
}

func TestErrorsDoNotHoldThePassword(t *testing.T) {
	s := startServer(t, true, false)
	settings := s.settings("127.0.0.1")
	settings.Username, settings.Password = "base", config.NewSecret("wrongpassword")
	err := mail.New(settings).Send(t.Context(), "ada@example.org", "x", "y")
	if err == nil || strings.Contains(err.Error(), "wrongpassword") {
		t.Errorf("got error %v, want one without the password", err)
	}
}

func TestMailWithoutAServerIsAnError(t *testing.T) {
	m := mail.New(mail.Settings{})
	if m.Enabled() {
		t.Error("the mailer is enabled without a server")
	}
	if err := m.Send(t.Context(), "ada@example.org", "x", "y"); !errors.Is(err, mail.ErrDisabled) {
		t.Errorf("got %v, want ErrDisabled", err)
	}
}

func TestReloadChangesTheServer(t *testing.T) {
	s := startServer(t, false, false)
	m := mail.New(mail.Settings{})
	m.Reload(s.settings("127.0.0.1"))
	if err := m.Send(t.Context(), "ada@example.org", "x", "y"); err != nil {
		t.Errorf("after the reload: got %v, want the mail sent", err)
	}
}
