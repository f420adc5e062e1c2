package console_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"basegate/budget"
	"basegate/console"
	apierr "basegate/errors"
)

// unreadBody fails the test if it is sent.
type unreadBody struct {
	t    *testing.T
	name string
}

func (b unreadBody) Read([]byte) (int, error) {
	b.t.Errorf("%s: the body of a refused request was read", b.name)
	return 0, io.ErrUnexpectedEOF
}

// spentCompleter takes no text beyond the budget.
type spentCompleter struct{ unauthorizedCompleter }

func (spentCompleter) AllowFreeText(budget.Payer, int64) error {
	return apierr.BudgetSpent(apierr.Budget{FreeText: 1 << 20})
}

// Bodies of 3 MB that were refused made others wait: 4 ms became 90.
func TestRateIsAskedBeforeTheBodyIsRead(t *testing.T) {
	s := newSite(t, func(_ *console.Settings, d *console.Deps) { d.Completer = spentCompleter{} })
	s.account("ada@example.org", false)
	ada, anonymous := s.signIn("ada@example.org"), s.browser()
	const save = "/console/api/prompts"
	site, err := url.Parse(s.url)
	must(t, err)
	send := func(b *browser, method, path, contentType string, length int64, body io.Reader) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, body)
		must(t, err)
		req.ContentLength = length
		for name, value := range map[string]string{"Sec-Fetch-Site": "same-origin", "Content-Type": contentType, "Expect": "100-continue"} {
			req.Header.Set(name, value)
		}
		for _, cookie := range b.client.Jar.Cookies(site) {
			req.AddCookie(cookie)
		}
		transport := &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}
		resp, err := transport.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		return resp, err
	}
	wantStatus(t, "a save of no prompt", ada.sendJSON(http.MethodPost, save, `"`+strings.Repeat("x", 4<<20-2)+`"`), http.StatusUnprocessableEntity)
	for range 7 { // they count, although they save nothing
		if _, err := send(ada, http.MethodPost, save, "application/json", 4<<20, iotest.ErrReader(io.ErrUnexpectedEOF)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("a save whose body breaks off: got %v", err)
		}
	}
	for range 10 {
		anonymous.post("/feedback", "message", "hello")
	}
	for _, c := range []struct {
		method, path, contentType string
		browser                   *browser
	}{
		{http.MethodPost, save, "application/json", ada},
		{http.MethodPost, save, "application/x-www-form-urlencoded", ada},
		{http.MethodPut, save + "/pr_1", "application/json", ada},
		{http.MethodPost, "/console/api/tokenize", "application/json", ada},
		{http.MethodPost, "/console/api/detokenize", "application/json", ada},
		{http.MethodPost, "/feedback", "application/x-www-form-urlencoded", anonymous},
		{http.MethodPost, "/request-access", "application/x-www-form-urlencoded", anonymous},
	} {
		name := fmt.Sprintf("%s %s of %s", c.method, c.path, c.contentType)
		length := int64(60 << 10)
		if c.browser == ada {
			length = 31 << 20 // half a minute of the rate
		}
		resp, err := send(c.browser, c.method, c.path, c.contentType, length, unreadBody{t, name})
		must(t, err)
		if resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%s: got %d, want 429", name, resp.StatusCode)
		}
	}
}
