package console_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/tidwall/gjson"
)

func TestVersionsOfAPromptAreListedOpenedAndDeleted(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	ada, eve := s.signIn("ada@example.org"), s.signIn("eve@example.org")
	id := ada.savePrompt("Draft", `{"text":"first"}`)
	path := "/console/api/prompts/" + id
	ada.saveAgain(id, 1, "Study", `{"text":"second"}`)
	// Another tab, which has opened the first version, saves it: nothing of the others is lost.
	if version := ada.saveAgain(id, 1, "Study, from another tab", `{"text":"third"}`); version != 3 {
		t.Errorf("a save that is based on an earlier version: got version %d, want 3", version)
	}
	versions := func() string { return gjson.Get(ada.get(path+"/versions").body, "versions.#.version").Raw }
	if got := versions(); got != "[3,2,1]" {
		t.Errorf("got versions %s, want three, the latest first", got)
	}
	for version, want := range map[int]string{1: "first", 2: "second", 3: "third"} {
		has(t, ada.get(fmt.Sprint(path, "/versions/", version)).body, `{"text":"`+want+`"}`)
	}
	has(t, ada.get(path).body, "third")
	lacks(t, ada.get("/console/api/prompts").body, "Draft")

	for _, c := range []struct {
		by     *browser
		method string
		path   string
	}{
		{eve, http.MethodGet, path + "/versions"},
		{eve, http.MethodGet, path + "/versions/1"},
		{eve, http.MethodDelete, path + "/versions/1"},
		{ada, http.MethodGet, path + "/versions/4"},
		{ada, http.MethodGet, path + "/versions/latest"},
		{ada, http.MethodDelete, path + "/versions/3"}, // the latest goes with its prompt only
		{ada, http.MethodGet, "/console/api/prompts/pr_X/versions"},
	} {
		wantStatus(t, c.method+" "+c.path, c.by.sendJSON(c.method, c.path, ""), http.StatusNotFound)
	}
	wantStatus(t, "delete a version", ada.sendJSON(http.MethodDelete, path+"/versions/2", ""), http.StatusNoContent)
	if got := versions(); got != "[3,1]" {
		t.Errorf("got versions %s, want all but the deleted one", got)
	}
	wantStatus(t, "delete", ada.sendJSON(http.MethodDelete, path, ""), http.StatusNoContent)
	wantStatus(t, "a version of a deleted prompt", ada.get(path+"/versions/1"), http.StatusNotFound)
}

func TestCopySaysWhereItIsFrom(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	ada, eve := s.signIn("ada@example.org"), s.signIn("eve@example.org")
	id := ada.savePrompt("A study", `{"text":"x"}`)
	share := func() string {
		return gjson.Get(ada.sendJSON(http.MethodPost, "/console/api/prompts/"+id+"/share", "").body, "share").Str
	}
	link := share()
	fork := func(b *browser, from string) response {
		return b.sendJSON(http.MethodPost, "/console/api/prompts", fmt.Sprintf(`{"name":"Copy","model":"m","document":{},"from":%q}`, from))
	}
	origin := func(b *browser, created response) string {
		t.Helper()
		wantStatus(t, "copy", created, http.StatusCreated)
		copied := gjson.Get(created.body, "id").Str
		b.saveAgain(copied, 1, "Copy, changed", `{}`)
		return gjson.Get(b.get("/console/api/prompts/"+copied).body, "origin").Raw
	}
	if got, want := origin(ada, fork(ada, id)), fmt.Sprintf(`{"id":%q,"name":"A study","owner":""}`, id); got != want {
		t.Errorf("a copy of one's own: got origin %s, want %s", got, want)
	}
	if got, want := origin(eve, fork(eve, link)), fmt.Sprintf(`{"id":%q,"name":"A study","owner":"ada@example.org"}`, link); got != want {
		t.Errorf("a copy of a shared prompt: got origin %s, want %s", got, want)
	}
	lacks(t, eve.get("/console/api/shared/"+link).body, "origin")
	wantStatus(t, "a copy of another account's prompt", fork(eve, id), http.StatusNotFound)
	wantStatus(t, "a copy of an unknown prompt", fork(ada, "pr_X"), http.StatusNotFound)
	wantStatus(t, "stop sharing", ada.sendJSON(http.MethodDelete, "/console/api/prompts/"+id+"/share", ""), http.StatusNoContent)
	wantStatus(t, "a copy by a revoked link", fork(eve, link), http.StatusNotFound)
	link = share()
	_, err := s.accounts.Disable(t.Context(), "ada@example.org")
	must(t, err)
	wantStatus(t, "a copy of a disabled account's prompt", fork(eve, link), http.StatusNotFound)
}
