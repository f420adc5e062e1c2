package console_test

import (
	"context"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"basegate/console"
)

// fakeMail records mails.
type fakeMail struct{ sent []string }

func (*fakeMail) Enabled() bool { return true }

func (m *fakeMail) Send(_ context.Context, to, subject, text string) error {
	m.sent = append(m.sent, to+"\n"+subject+"\n"+text)
	return nil
}

var feedbackID = regexp.MustCompile(`/admin/feedback/(fb_[A-Z2-7]+)`)

func TestFeedbackGetsAStatusAndAReply(t *testing.T) {
	mail := &fakeMail{}
	s := newSite(t, func(_ *console.Settings, d *console.Deps) { d.Mail = mail })
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	s.account("root@example.org", true)
	ada, root := s.signIn("ada@example.org"), s.signIn("root@example.org")
	ada.post("/feedback", "page", "/usage", "message", "The chart is <empty>.")
	id := feedbackID.FindStringSubmatch(root.get("/admin/feedback").body)[1]
	wantRedirect(t, "answer", root.post("/admin/feedback/"+id, "status", "done", "reply", "Fixed in <main>."), "/admin/feedback#"+id)
	if len(mail.sent) != 1 || !strings.Contains(mail.sent[0], "ada@example.org") || !strings.Contains(mail.sent[0], "Fixed in <main>.") {
		t.Errorf("got the mails %q, want one with the reply", mail.sent)
	}
	root.post("/admin/feedback/"+id, "status", "declined", "reply", "Fixed in <main>.")
	if len(mail.sent) != 1 {
		t.Errorf("got %d mails after another status, want 1", len(mail.sent))
	}
	has(t, ada.get("/dashboard").body, "An administrator has replied")
	has(t, ada.get("/feedback").body, "The chart is &lt;empty&gt;.", "Fixed in &lt;main&gt;.", "declined", "root@example.org")
	lacks(t, ada.get("/dashboard").body, "An administrator has replied")
	eve := s.signIn("eve@example.org")
	lacks(t, eve.get("/feedback").body, "Fixed in")
	if got := eve.post("/admin/feedback/"+id, "status", "open"); got.status != http.StatusNotFound && got.status != http.StatusForbidden {
		t.Errorf("a user answers feedback: got %d", got.status)
	}
	has(t, root.get("/admin/feedback?status=declined").body, "Fixed in")
	lacks(t, root.get("/admin/feedback?status=open").body, "Fixed in")
	has(t, root.get("/admin/audit").body, "answer feedback", "open → done, reply changed")
	lacks(t, root.get("/admin/audit").body, "Fixed in")

	wantStatus(t, "a status that is none", root.post("/admin/feedback/"+id, "status", "eaten"), http.StatusUnprocessableEntity)
	wantStatus(t, "feedback that is none", root.post("/admin/feedback/fb_X", "status", "open"), http.StatusNotFound)
	s.browser().post("/feedback", "page", "/sign-in", "message", "hello")
	anonymous := feedbackID.FindStringSubmatch(root.get("/admin/feedback?status=open").body)[1]
	wantStatus(t, "a reply to nobody", root.post("/admin/feedback/"+anonymous, "status", "open", "reply", "hi"), http.StatusUnprocessableEntity)
}

func TestFeedbackAndAuditLogArePaged(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	b := s.signIn("root@example.org")
	for range 60 {
		b.post("/feedback", "page", "/usage", "message", "once more")
		must(t, s.auditLog.Record(t.Context(), "warm model", "llama-8b", ""))
	}
	older := regexp.MustCompile(`href="([^"]+)" rel="next"`)
	for _, path := range []string{"/admin/feedback", "/admin/audit?action=warm+model"} {
		first := b.get(path).body
		link := older.FindStringSubmatch(first)
		if link == nil {
			t.Fatalf("%s has no link to older entries", path)
		}
		second := b.get(html.UnescapeString(link[1])).body
		if n := strings.Count(second, "once more") + strings.Count(second, ">warm model</td>"); n != 10 {
			t.Errorf("%s: the second page has %d entries, want the other 10", path, n)
		}
		if older.MatchString(second) {
			t.Errorf("%s: the last page has a link to older entries", path)
		}
	}
	has(t, b.get("/admin/audit?after=x").body, "No matching changes.")
	has(t, b.get("/admin/audit?q=nobody").body, "No matching changes.")
}

func TestAdministratorsSeeTheRequestsOfAllAccounts(t *testing.T) {
	s, _ := newSiteWithUsage(t)
	s.account("root@example.org", true)
	b := s.signIn("root@example.org")
	a, err := s.accounts.Find(t.Context(), "ada@example.org")
	must(t, err)
	lacks(t, b.get("/usage/requests").body, "cluster")
	for _, account := range []string{"all", a.ID} {
		has(t, b.get("/usage/requests?account="+account).body, "cluster", "ada@example.org", "account="+account)
	}
	has(t, b.get("/usage/requests.csv?account=all").body, "cluster")
	wantStatus(t, "an account that is none", b.get("/usage/requests?account=acc_none"), http.StatusNotFound)
	user := s.signIn("ada@example.org")
	wantStatus(t, "all accounts as a user", user.get("/usage/requests?account=all"), http.StatusNotFound)
	has(t, b.get("/admin/accounts/"+a.ID).body, "/usage/requests?account="+a.ID, "/admin/audit?q=ada%40example.org", "create key")
}
