package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/console/prompts"
)

func TestPresetsAreTheUsersOwn(t *testing.T) {
	const path = "/console/api/presets"
	s := newSite(t)
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	ada, eve := s.signIn("ada@example.org"), s.signIn("eve@example.org")
	save := func(mode, name, settings string) {
		t.Helper()
		body := fmt.Sprintf(`{"mode":%q,"name":%q,"settings":%s}`, mode, name, settings)
		wantStatus(t, "save "+name, ada.sendJSON(http.MethodPut, path, body), http.StatusNoContent)
	}
	save("completion", " study ", `{"top_k":40}`)
	save("completion", "study", `{"top_k":50,"stop":["\n"]}`)
	save("chat", "study", `{"n":4}`)
	want := `[{"mode":"chat","name":"study","settings":{"n":4}},{"mode":"completion","name":"study","settings":{"top_k":50,"stop":["\n"]}}]`
	if got := gjson.Get(ada.get(path).body, "presets").Raw; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := gjson.Get(eve.get(path).body, "presets").Raw; got != "[]" {
		t.Errorf("another user: got %s, want none", got)
	}
	query := path + "?" + url.Values{"mode": {"chat"}, "name": {"study"}}.Encode()
	wantStatus(t, "delete another user's", eve.sendJSON(http.MethodDelete, query, ""), http.StatusNoContent)
	wantStatus(t, "delete", ada.sendJSON(http.MethodDelete, query, ""), http.StatusNoContent)
	if names := gjson.Get(ada.get(path).body, "presets.#.mode").Raw; names != `["completion"]` {
		t.Errorf("after the deletion: got %s", names)
	}

	for _, body := range []string{
		`{"mode":"other","name":"a","settings":{}}`, `{"mode":"chat","name":" ","settings":{}}`, `{"mode":"chat","name":"a","settings":[]}`, `{"mode":"chat","name":"a"}`,
		`{"mode":"chat","name":"` + strings.Repeat("é", 61) + `","settings":{}}`, `{"mode":"chat","name":"a","settings":{"stop":"` + strings.Repeat("x", 16<<10) + `"}}`,
	} {
		wantStatus(t, body[:min(60, len(body))], ada.sendJSON(http.MethodPut, path, body), http.StatusUnprocessableEntity)
	}
	for i := 1; i < prompts.MaxPresets; i++ {
		save("chat", fmt.Sprint(i), `{}`)
	}
	wantStatus(t, "one too many", ada.sendJSON(http.MethodPut, path, `{"mode":"chat","name":"more","settings":{}}`), http.StatusUnprocessableEntity)
	save("chat", "1", `{"n":2}`)
}
