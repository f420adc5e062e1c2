package console_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/identity"
	"basegate/internal/databasetest"
)

// A save of 4 MB was one transaction, which other writes waited for: the median of settlements was 240 ms instead of 1 ms.
func TestNoTransactionOfASaveIsLarge(t *testing.T) {
	databasetest.SkipPostgres(t, "its write-ahead log is the server's")
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	document := differentWords(500_000)
	id := b.savePrompt("large", document)
	wantSmallTransactions(t, "save", s.path)
	body := `{"name":"large","model":"llama-8b","version":1,"document":` + document + `}`
	wantStatus(t, "update", b.sendJSON(http.MethodPut, "/console/api/prompts/"+id, body), http.StatusOK)
	wantSmallTransactions(t, "update", s.path)
	wantStatus(t, "delete", b.sendJSON(http.MethodDelete, "/console/api/prompts/"+id, ""), http.StatusNoContent)
	wantSmallTransactions(t, "delete", s.path)
}

// differentWords returns a document whose words are all different, so that its row has as many as any.
func differentWords(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "w%d ", i)
	}
	return `{"tree":{"nodes":[{"text":"` + text.String() + `"}]}}`
}

// Saves of several users at the same time do not share a transaction either.
func TestConcurrentSavesAreSeparateTransactions(t *testing.T) {
	databasetest.SkipPostgres(t, "its write-ahead log is the server's")
	if testing.Short() {
		t.Skip("takes several seconds; make test-all runs it")
	}
	s := newSite(t)
	document := differentWords(70_000)
	var saves sync.WaitGroup
	for i := range 8 {
		email := fmt.Sprintf("%d@example.org", i)
		s.account(email, false)
		b := s.signIn(email)
		saves.Go(func() {
			body := `{"name":"n","model":"llama-8b","document":` + document + `}`
			if got := b.sendJSON(http.MethodPost, "/console/api/prompts", body); got.status != http.StatusCreated {
				t.Errorf("save: got status %d, want 201: %s", got.status, got.body)
			}
		})
	}
	saves.Wait()
	wantSmallTransactions(t, "concurrent saves", s.path)
}

// wantSmallTransactions fails the test if a transaction in the write-ahead log of a database is larger than the words of a prompt
// and what is changed with them. See https://sqlite.org/fileformat2.html#the_write_ahead_log.
func wantSmallTransactions(t *testing.T, what, path string) {
	t.Helper()
	wal, err := os.ReadFile(path + "-wal")
	must(t, err)
	const header, frameHeader, most = 32, 24, 256 << 10
	frame := frameHeader + int(binary.BigEndian.Uint32(wal[8:]))
	salt := string(wal[16:24])
	size, transactions := 0, 0
	for at := header; at+frame <= len(wal) && string(wal[at+8:at+16]) == salt; at += frame {
		if size += frame; size > most {
			t.Fatalf("%s: a transaction wrote more than %d KiB", what, most>>10)
		}
		if binary.BigEndian.Uint32(wal[at+4:]) != 0 { // the frame ends a transaction
			size = 0
			transactions++
		}
	}
	if transactions == 0 {
		t.Errorf("%s: the write-ahead log has no transaction, so this test shows nothing", what)
	}
}

func TestSaveBeyondTheQuotaIsRefusedWithAReason(t *testing.T) {
	s := newSite(t)
	s.prompts.Reload(100 << 10)
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	b := s.signIn("ada@example.org")
	document := `{"tree":{"nodes":[{"text":"` + strings.Repeat("x", 30<<10) + `"}]}}`
	id := b.savePrompt("first", document)
	body := fmt.Sprintf(`{"name":"second","model":"llama-8b","document":%s}`, document)
	got := b.sendJSON(http.MethodPost, "/console/api/prompts", body)
	wantStatus(t, "a save beyond the quota", got, http.StatusRequestEntityTooLarge)
	has(t, gjson.Get(got.body, "error.message").Str,
		"This prompt takes 60\u202fKiB", "other saved prompts take 60\u202fKiB of the 100\u202fKiB", "Delete some")
	list := b.get("/console/api/prompts").body
	if used := gjson.Get(list, "bytes").Int(); used < 60<<10 || used > 61<<10 || gjson.Get(list, "max_bytes").Int() != 100<<10 {
		t.Errorf("got list %s, want what the prompts take and the quota", list)
	}
	s.signIn("eve@example.org").savePrompt("hers", document)
	wantStatus(t, "delete", b.sendJSON(http.MethodDelete, "/console/api/prompts/"+id, ""), http.StatusNoContent)
	b.savePrompt("second", document)
}

func TestSharedPromptIsReadByColleaguesUntilItsLinkIsRevoked(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	ada, eve := s.signIn("ada@example.org"), s.signIn("eve@example.org")
	id := ada.savePrompt("A study", `{"tree":{"nodes":[{"text":"shared text"}]}}`)
	share := func() string {
		t.Helper()
		got := ada.sendJSON(http.MethodPost, "/console/api/prompts/"+id+"/share", "")
		wantStatus(t, "share", got, http.StatusOK)
		return gjson.Get(got.body, "share").Str
	}
	first := share()
	if again := share(); again != first || len(first) < 20 {
		t.Errorf("got links %q and %q, want the same, which cannot be guessed", first, again)
	}
	got := eve.get("/console/api/shared/" + first)
	has(t, got.body, "shared text", `"owner":"ada@example.org"`, "A study")
	lacks(t, got.body, id)
	has(t, ada.get("/console/api/prompts?q=").body, first)
	wantStatus(t, "not signed in", s.browser().get("/console/api/shared/"+first), http.StatusUnauthorized)
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		wantStatus(t, method+" by another user", eve.sendJSON(method, "/console/api/prompts/"+id+"/share", ""), http.StatusNotFound)
	}
	wantStatus(t, "the prompt itself", eve.get("/console/api/prompts/"+id), http.StatusNotFound)

	body := `{"name":"A study","model":"llama-8b","version":1,"document":{"tree":{"nodes":[{"text":"changed text"}]}}}`
	wantStatus(t, "update", ada.sendJSON(http.MethodPut, "/console/api/prompts/"+id, body), http.StatusOK)
	has(t, eve.get("/console/api/shared/"+first).body, "changed text")

	wantStatus(t, "stop sharing", ada.sendJSON(http.MethodDelete, "/console/api/prompts/"+id+"/share", ""), http.StatusNoContent)
	wantStatus(t, "a revoked link", eve.get("/console/api/shared/"+first), http.StatusNotFound)
	second := share()
	if second == first {
		t.Error("a new link is the revoked one")
	}
	wantStatus(t, "a new link", eve.get("/console/api/shared/"+second), http.StatusOK)
	entries, _, err := s.auditLog.Find(t.Context(), identity.AuditFilter{Search: id}, "", 10)
	must(t, err)
	var audited []string
	for _, e := range entries {
		audited = append(audited, e.Actor+": "+e.Action)
	}
	if want := "ada@example.org: share prompt, ada@example.org: unshare prompt, ada@example.org: share prompt"; strings.Join(audited, ", ") != want {
		t.Errorf("got the audit log %q, want %s", audited, want)
	}
	wantStatus(t, "delete", ada.sendJSON(http.MethodDelete, "/console/api/prompts/"+id, ""), http.StatusNoContent)
	wantStatus(t, "the link of a deleted prompt", eve.get("/console/api/shared/"+second), http.StatusNotFound)
}

func TestPromptSharedWithEveryoneIsListedUnderItsOwnerUntilThatIsRevoked(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	ada, eve := s.signIn("ada@example.org"), s.signIn("eve@example.org")
	id := ada.savePrompt("Lab/Study #done", `{"tree":{"nodes":[{"text":"shared words"}]}}`)
	path := "/console/api/prompts/" + id + "/share"
	everyone := func(b *browser, on bool) int {
		return b.sendJSON(http.MethodPut, path, fmt.Sprintf(`{"everyone":%v}`, on)).status
	}
	found := func(b *browser, query string) string {
		return gjson.Get(b.get("/console/api/prompts?q="+query).body, "shared").Raw
	}
	if got := everyone(ada, true); got != http.StatusNotFound {
		t.Errorf("without a link: got status %d, want 404", got)
	}
	share := gjson.Get(ada.sendJSON(http.MethodPost, path, "").body, "share").Str
	if got := found(eve, ""); got != "[]" {
		t.Errorf("with a link alone, the list has %s", got)
	}
	if own, other := everyone(ada, true), everyone(eve, false); own != http.StatusNoContent || other != http.StatusNotFound {
		t.Errorf("got status %d for the owner and %d for another user, want 204 and 404", own, other)
	}
	body := `{"name":"Lab/Study #done","model":"llama-8b","version":1,"document":{"tree":{"nodes":[{"text":"changed words"}]}}}`
	wantStatus(t, "update", ada.sendJSON(http.MethodPut, "/console/api/prompts/"+id, body), http.StatusOK)
	for _, query := range []string{"", "changed+study"} {
		has(t, found(eve, query), `"share":"`+share+`"`, `"owner":"ada@example.org"`, "Lab/Study #done")
	}
	lacks(t, found(eve, ""), id)
	has(t, eve.get("/console/api/palette").body, `"name":"Lab/Study #done","note":"ada@example.org","path":"/workbench?shared=`+share+`"`)
	has(t, eve.get("/console/api/shared/"+share).body, "changed words")
	for what, got := range map[string]string{"another search": found(eve, "unknown"), "the owner's list of others' prompts": found(ada, "")} {
		if got != "[]" {
			t.Errorf("%s: got %s", what, got)
		}
	}
	has(t, ada.get("/console/api/prompts?q=").body, `"everyone":true`)

	everyone(ada, false)
	if got := found(eve, ""); got != "[]" {
		t.Errorf("no longer shared with everyone: the list has %s", got)
	}
	wantStatus(t, "the link", eve.get("/console/api/shared/"+share), http.StatusOK)
	everyone(ada, true)
	_, err := s.accounts.Disable(t.Context(), "ada@example.org")
	must(t, err)
	if got := found(eve, ""); got != "[]" {
		t.Errorf("of a disabled account: the list has %s", got)
	}
	_, err = s.accounts.Enable(t.Context(), "ada@example.org")
	must(t, err)
	ada = s.signIn("ada@example.org")
	wantStatus(t, "stop sharing", ada.sendJSON(http.MethodDelete, path, ""), http.StatusNoContent)
	ada.sendJSON(http.MethodPost, path, "")
	if got := found(eve, ""); got != "[]" {
		t.Errorf("with a new link: the list has %s", got)
	}
	entries, _, err := s.auditLog.Find(t.Context(), identity.AuditFilter{Search: id}, "", 10)
	must(t, err)
	var audited []string
	for _, e := range entries {
		audited = append(audited, strings.TrimSpace(e.Action+" "+e.Detail))
	}
	want := "share prompt, unshare prompt, share prompt with everyone, unshare prompt with everyone, share prompt with everyone, share prompt"
	if got := strings.Join(audited, ", "); got != want {
		t.Errorf("got the audit log %q, want %q", got, want)
	}
}

// A save that the storage does not take is refused, so that the browser keeps its draft.
func TestPromptsWithoutTheirStorageAreUnavailable(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	id := b.savePrompt("kept", `{"text":"kept"}`)
	must(t, os.RemoveAll(s.path+".files"))
	for what, got := range map[string]response{
		"read": b.get("/console/api/prompts/" + id),
		"save": b.sendJSON(http.MethodPost, "/console/api/prompts", `{"name":"n","model":"m","document":{"text":"lost"}}`),
	} {
		wantStatus(t, what, got, http.StatusServiceUnavailable)
		has(t, got.body, "storage_unavailable")
	}
	list := b.get("/console/api/prompts").body
	if names := gjson.Get(list, "prompts.#.name").String(); names != `["kept"]` {
		t.Errorf("got the prompts %s, want no other than the first one", names)
	}
}
