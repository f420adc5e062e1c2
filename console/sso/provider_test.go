package sso_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"basegate/console/sso"
	"basegate/gateway/config"
)

const redirectURL = "http://127.0.0.1:9/callback"

// startProvider builds and starts the example provider of zitadel/oidc with one user, and returns its issuer.
func startProvider(t *testing.T) (issuer string) {
	t.Helper()
	folder := t.TempDir()
	program, users := filepath.Join(folder, "provider"), filepath.Join(folder, "users.json")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = "testdata/provider"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the identity provider: %v\n%s", err, out)
	}
	const user = `{"ada": {"ID": "ada", "Username": "ada", "Password": "pw", "FirstName": "Ada", "LastName": "L",
		"Email": "ada@lab.example.org", "EmailVerified": true, "Groups": ["research", "ops"]}}`
	must(t, os.WriteFile(users, []byte(user), 0o600))
	run := exec.CommandContext(t.Context(), program, users, redirectURL)
	out, err := run.StdoutPipe()
	must(t, err)
	must(t, run.Start())
	t.Cleanup(func() {
		run.Process.Kill()
		run.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	return strings.TrimSpace(line)
}

var authRequestField = regexp.MustCompile(`name="id" value="([^"]+)"`)

// signIn fills in the provider's form as a browser does, and returns what the provider sends back.
func signIn(t *testing.T, address string) (state, code string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	must(t, err)
	var back *url.URL
	client := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.String(), redirectURL) {
			back = r.URL
			return http.ErrUseLastResponse
		}
		return nil
	}}
	page, err := client.Get(address)
	must(t, err)
	defer page.Body.Close()
	text, err := io.ReadAll(page.Body)
	must(t, err)
	field := authRequestField.FindSubmatch(text)
	if field == nil {
		t.Fatalf("the provider shows no form: %d %s", page.StatusCode, text)
	}
	answer, err := client.PostForm(page.Request.URL.String(), url.Values{"username": {"ada"}, "password": {"pw"}, "id": {string(field[1])}})
	must(t, err)
	defer answer.Body.Close()
	if back == nil {
		t.Fatalf("the provider does not send ada back: %d", answer.StatusCode)
	}
	return back.Query().Get("state"), back.Query().Get("code")
}

// The provider is a program of other authors, which checks the secret of the client, PKCE and the redirect address, and has
// groups at its userinfo endpoint only. The console's tests have the other cases, with a provider of their own.
func TestUserSignsInAtAProviderOfOtherAuthors(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the provider")
	}
	settings := sso.Settings{RedirectURL: redirectURL, OIDC: config.OIDC{
		Issuer: must1(url.Parse(startProvider(t))), ClientID: "basegate", ClientSecret: config.NewSecret("secret"), GroupsClaim: "groups", AdminGroup: "ops",
	}}
	for _, c := range []struct {
		name    string
		change  func(*sso.Flow)
		refused bool
	}{
		{"as it should be", func(*sso.Flow) {}, false},
		{"with another nonce", func(f *sso.Flow) { f.Nonce += "x" }, true},
		{"with another verifier", func(f *sso.Flow) { f.Verifier += "x" }, true},
		{"with another state", func(f *sso.Flow) { f.State += "x" }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := sso.New(settings, &http.Transport{DisableKeepAlives: true})
			address, flow, err := p.Begin(t.Context())
			must(t, err)
			state, code := signIn(t, address)
			c.change(&flow)
			user, err := p.Finish(t.Context(), flow, state, code)
			if want := (sso.User{Email: "ada@lab.example.org", Name: "Ada L", Allowed: true, Admin: true}); !c.refused && (err != nil || user != want) {
				t.Errorf("got %+v and error %v, want %+v", user, err, want)
			}
			if c.refused && err == nil {
				t.Errorf("got %+v, want an error", user)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
