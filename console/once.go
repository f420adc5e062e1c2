package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"basegate/identity"
)

// A form that succeeds redirects to a page, so that reloading the page does not send the form again. The confirmation
// of what was done and a new secret are shown once: they travel in a cookie of the page's own path. The cookie is
// encrypted with a key that is derived from the token of the session, which the gateway stores as a hash only. So it
// survives a restart, any instance of the gateway can read it, tabs do not overwrite each other's, and without the
// session it is worthless.

const (
	// secretLife is how long after the form its secret can be shown.
	secretLife = 10 * time.Minute
	// messageLife is how long after the form its confirmation can be shown.
	messageLife = time.Minute
)

// newSecret is what a form has created and a page shows once.
type newSecret struct {
	Key     string // id of the key; empty for an invitation
	Rotated bool   // the key is not new, but its secret is
	Email   string // of the invited account
	Secret  string // of the key, or the token of the invitation
	Mail    string // the result of mailing the invitation; see mailInvitation
	Expires int64  // Unix seconds, when it can no longer be shown
}

var errShownBefore = newProblem(http.StatusGone, "This was shown before",
	"A new key or invitation is shown once. If you have not copied it, rotate the key on its page, or create "+
		"another invitation.")

// redirectToSecret sends the browser to a page that shows a secret once.
func (c *Console) redirectToSecret(r *request, s newSecret) error {
	path := "/once/" + rand.Text()
	s.Expires = c.clock().Add(secretLife).Unix()
	if err := c.setSealedCookie(r, "secret", path, s, secretLife); err != nil {
		return err
	}
	return r.redirect(path)
}

// showOnce shows the secret of a form, and deletes it from the browser.
func (c *Console) showOnce(r *request) error {
	path := r.Request().URL.Path
	var s newSecret
	if !c.readSealedCookie(r, "secret", path, &s) || c.clock().Unix() > s.Expires {
		return errShownBefore
	}
	if r.Request().Method == http.MethodHead {
		return nil
	}
	c.deleteSealedCookie(r, "secret", path)
	if s.Key == "" {
		return c.render(r, "admin-invited", "Invitation", map[string]string{
			"Email": s.Email, "URL": c.invitationURL(s.Secret), "Mail": s.Mail,
		})
	}
	k, err := c.keyOf(r.ctx(), s.Key, r.account.ID)
	if errors.Is(err, identity.ErrNoKey) {
		return errNotFound
	}
	if err != nil {
		return err
	}
	return c.showSecret(r, createdKey{Key: k, Secret: s.Secret, Rotated: s.Rotated})
}

// redirectDone sends the browser to a page that confirms what was done, unless err is an error, which it returns. The path may
// have a fragment.
func (c *Console) redirectDone(r *request, err error, path, message string) error {
	if err != nil {
		return err
	}
	page, _, _ := strings.Cut(path, "#")
	page, _, _ = strings.Cut(page, "?")
	if r.signedIn() {
		if err := c.setSealedCookie(r, "done", page, message, messageLife); err != nil {
			return err
		}
	}
	return r.redirect(path)
}

// takeMessage returns the confirmation that redirectDone has left for the page, and deletes it from the browser. A script
// that refreshes the page in the background leaves it there.
func (c *Console) takeMessage(r *request) (message string) {
	path := r.Request().URL.Path
	if r.Request().Method != http.MethodGet || r.Request().Header.Get("Basegate-Live") != "" || !c.readSealedCookie(r, "done", path, &message) {
		return ""
	}
	c.deleteSealedCookie(r, "done", path)
	return message
}

func (c *Console) setSealedCookie(r *request, name, path string, value any, life time.Duration) error {
	plain, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode cookie: %w", err)
	}
	sealer, err := r.sealer()
	if err != nil {
		return err
	}
	sealed := sealer.Seal(nil, nil, plain, []byte(name+" "+path)) //nolint:gosec // the cipher makes the nonce
	c.setCookie(r, c.pathCookieName(name), base64.RawURLEncoding.EncodeToString(sealed), path, life)
	return nil
}

// readSealedCookie reads a cookie of exactly this path. It returns false if there is none that this session has sealed.
func (c *Console) readSealedCookie(r *request, name, path string, into any) bool {
	for _, cookie := range r.Request().CookiesNamed(c.pathCookieName(name)) {
		sealed, err := base64.RawURLEncoding.DecodeString(cookie.Value)
		if err != nil {
			continue
		}
		sealer, err := r.sealer()
		if err != nil {
			return false
		}
		plain, err := sealer.Open(nil, nil, sealed, []byte(name+" "+path))
		if err == nil && json.Unmarshal(plain, into) == nil {
			return true
		}
	}
	return false
}

// sealer returns the cipher of the request's session.
func (r *request) sealer() (cipher.AEAD, error) {
	if r.session == "" {
		return nil, errSignedOut
	}
	key, err := hkdf.Key(sha256.New, []byte(r.session), nil, "basegate console: shown once", 32)
	if err != nil {
		return nil, fmt.Errorf("derive key of cookie: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("encrypt cookie: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// pathCookieName returns the name of a cookie for one path. __Host- does not allow such cookies.
func (c *Console) pathCookieName(name string) string {
	if c.usesHTTPS() {
		return "__Secure-basegate-" + name
	}
	return "basegate-" + name
}

func (c *Console) deleteSealedCookie(r *request, name, path string) {
	c.setCookie(r, c.pathCookieName(name), "", path, -time.Second)
}
