package gateway_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/budget/quota"
	"basegate/database"
	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/internal/poll"
)

// This file tests what the API offers to the holder of a key besides completions, through both servers.

// otherProcess returns the accounts and keys of a second process on the configured database.
func otherProcess(t *testing.T, c *config.Config) *identity.Store {
	t.Helper()
	db, err := database.Open(t.Context(), database.Settings{Path: c.Database.Path}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return identity.New(db, zap.NewNop(), identity.Settings{})
}

func createKey(t *testing.T, keys *identity.Keys, k identity.Key) (id, secret string) {
	t.Helper()
	if k.Email = "ada@example.org"; k.Name == "" {
		k.Name = rand.Text()
	}
	key, secret, err := keys.Create(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	return key.ID, secret
}

// closedChannel lets the streams of startBackend end at once.
func closedChannel() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// get returns status and body of a GET, or of a POST if there is a body.
func get(t *testing.T, g *gateway.Gateway, secret, path, body string) (int, string) {
	t.Helper()
	resp := send(t, g.Addr(), secret, path, body)
	return resp.StatusCode, readBody(t, resp)
}

const streamOf = `{"model":"%","prompt":"x","stream":true,"user":"run 7"}`

func completionOf(model string) string { return strings.Replace(streamOf, "%", model, 1) }

func TestKeyWorksFromTheMomentItsCreationWasConfirmedByAnotherProcess(t *testing.T) {
	withAndWithoutFastPath(t, func(t *testing.T, fastPath bool) {
		t.Helper()
		c := newConfig(t, model("m", startBackend(t, closedChannel())))
		c.Server.FastPath = fastPath
		newKey(t, c)
		g, keys := start(t, c), otherProcess(t, c).Keys
		for range 10 {
			_, secret := createKey(t, keys, identity.Key{})
			if status, body := get(t, g, secret, "/v1/completions", completionOf("m")); status != http.StatusOK {
				t.Fatalf("a new key: got %d %s", status, body)
			}
		}
	})
}

// rejections returns the responses to requests with a key that is rejected, without their ids.
func rejections(t *testing.T, g *gateway.Gateway, secret string) (all []string) {
	t.Helper()
	for _, r := range [][2]string{{"/v1/models", ""}, {"/v1/completions", completionOf("m")}} {
		resp := send(t, g.Addr(), secret, r[0], r[1])
		text := readBody(t, resp)
		if h := resp.Header; resp.StatusCode != http.StatusUnauthorized || h.Get("WWW-Authenticate") != "Bearer" || h.Get("X-Should-Retry") != "false" ||
			gjson.Get(text, "error.code").Str != "invalid_api_key" || gjson.Get(text, "error.type").Str != "authentication_error" {
			t.Errorf("%s: got %d %v %s, want 401 invalid_api_key", r[0], resp.StatusCode, h, text)
		}
		all = append(all, fmt.Sprint(slices.Sorted(maps.Keys(resp.Header)), strings.ReplaceAll(text, resp.Header.Get("X-Request-Id"), "")))
	}
	return all
}

// All rejections of a key are alike but for the request's id, so that they reveal nothing to an attacker.
func TestRejectedKeysGetTheSameResponse(t *testing.T) {
	withAndWithoutFastPath(t, testRejectedKeysGetTheSameResponse)
}

func testRejectedKeysGetTheSameResponse(t *testing.T, fastPath bool) {
	t.Helper()
	c := newConfig(t, model("m", startBackend(t, closedChannel())))
	c.Server.FastPath = fastPath
	newKey(t, c)
	g, store := start(t, c), otherProcess(t, c)
	const email = "ada@example.org"
	capped := func(f *identity.Account) { f.Caps[quota.MonthTotal] = quota.Limit(1_000_000) } // must not show in the headers
	if _, err := store.Accounts.Set(t.Context(), email, capped); err != nil {
		t.Fatal(err)
	}
	expiredID, expired := createKey(t, store.Keys, identity.Key{})
	if _, err := store.Keys.Set(t.Context(), expiredID, func(f *identity.Key) { f.ExpiresAt = time.Now().Add(-time.Hour) }); err != nil {
		t.Fatal(err)
	}
	id, replaced := createKey(t, store.Keys, identity.Key{})
	_, secret, err := store.Keys.Rotate(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	works := func(secret string) bool {
		status, _ := get(t, g, secret, "/v1/models", "")
		return status == http.StatusOK
	}
	if !works(secret) {
		t.Error("the new secret is rejected")
	}
	rejected := map[string]string{"none": "", "nonsense": "nonsense", "expired": expired, "replaced": replaced}
	for what, change := range map[string]func(context.Context, string) (identity.Key, error){"paused": store.Keys.Pause, "revoked": store.Keys.Revoke} {
		id, secret := createKey(t, store.Keys, identity.Key{})
		if !works(secret) {
			t.Errorf("a key is rejected before it is %s", what)
		}
		if _, err := change(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, "a key is rejected that is "+what, func() bool { return !works(secret) })
		rejected[what] = secret
	}
	unknown := rejections(t, g, "acs-bm-"+strings.Repeat("0", 43))
	for what, given := range rejected {
		if diff := cmp.Diff(unknown, rejections(t, g, given)); diff != "" {
			t.Errorf("a key that is %s (-unknown +got):\n%s", what, diff)
		}
	}
	if _, err := store.Accounts.Disable(t.Context(), email); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "a key of a disabled account is rejected", func() bool { return !works(secret) })
	if diff := cmp.Diff(unknown, rejections(t, g, secret)); diff != "" {
		t.Errorf("a key of a disabled account (-unknown +got):\n%s", diff)
	}
	if _, err := store.Accounts.Enable(t.Context(), email); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the key works again", func() bool { return works(secret) })
}

func TestKeyUsesOnlyTheModelsOfItsList(t *testing.T) {
	backend := startBackend(t, closedChannel())
	c := newConfig(t, model("a", backend), model("b", backend), model("c", backend))
	c.Models[0].Aliases, c.Models[2].Aliases = []string{"ay"}, []string{"cee"}
	anyModel := newKey(t, c)
	g, keys := start(t, c), otherProcess(t, c).Keys
	list, err := identity.NewModelList([]string{"b", "c"})
	if err != nil {
		t.Fatal(err)
	}
	_, secret := createKey(t, keys, identity.Key{Models: list})
	ids := func(secret string) string {
		_, body := get(t, g, secret, "/v1/models", "")
		return gjson.Get(body, "data.#.id").Raw
	}
	if all, own := ids(anyModel), ids(secret); all != `["a","b","c"]` || own != `["b","c"]` {
		t.Errorf("got models %s and %s", all, own)
	}
	status, body := get(t, g, secret, "/v1/completions", completionOf("a"))
	if status != http.StatusBadRequest || gjson.Get(body, "error.code").Str != "model_not_found" || gjson.Get(body, "error.available").Raw != `["b","c"]` {
		t.Errorf("another model: got %d %s", status, body)
	}
	if status, body := get(t, g, secret, "/v1/completions", completionOf("org/a")); status != http.StatusBadRequest || gjson.Get(body, "error.suggestion").Exists() {
		t.Errorf("the checkpoint of another model: got %d %s", status, body)
	}
	if status, body := get(t, g, secret, "/v1/models/a", ""); status != http.StatusNotFound {
		t.Errorf("another model's page: got %d %s", status, body)
	}
	for _, id := range []string{"c", "cee"} {
		if status, body := get(t, g, secret, "/v1/completions", completionOf(id)); status != http.StatusOK {
			t.Errorf("%s, a model of the list: got %d %s", id, status, body)
		}
	}
	if status, body := get(t, g, secret, "/v1/completions", completionOf("ay")); gjson.Get(body, "error.code").Str != "model_not_found" {
		t.Errorf("an alias of another model: got %d %s", status, body)
	}

	// An id that has become an alias still counts.
	next := *c
	next.Models = slices.Clone(c.Models)
	next.Models[1].ID, next.Models[1].Aliases = "new-b", []string{"b"}
	g.Reload(&next)
	if got := ids(secret); got != `["new-b","c"]` {
		t.Errorf("after a model got a new id: got %s", got)
	}
}

// Clients may use an alias; responses and the ledger have the short id.
func TestAliasIsServedUnderTheShortID(t *testing.T) {
	c := newConfig(t, model("m", startBackend(t, closedChannel())))
	c.Models[0].Aliases = []string{"em", "org/other"}
	secret := newKey(t, c)
	g := start(t, c)
	for _, path := range []string{"/v1/models/em", "/v1/models/org%2Fother"} {
		if status, body := get(t, g, secret, path, ""); status != http.StatusOK || gjson.Get(body, "id").Str != "m" {
			t.Errorf("%s: got %d %s, want the object of m", path, status, body)
		}
	}
	if _, body := get(t, g, secret, "/v1/models", ""); gjson.Get(body, "data.#.id").Raw != `["m"]` {
		t.Errorf("the list: got %s, want m once", body)
	}
	for _, alias := range []string{"em", "org/other"} {
		if status, body := get(t, g, secret, "/v1/completions", completionOf(alias)); status != http.StatusOK {
			t.Errorf("a completion of %s: got %d %s", alias, status, body)
		}
		if status, body := get(t, g, secret, "/v1/estimate", completionOf(alias)); status != http.StatusOK || gjson.Get(body, "model").Str != "m" {
			t.Errorf("an estimate of %s: got %d %s, want that of m", alias, status, body)
		}
	}
	_, usage := get(t, g, secret, "/v1/usage?by=model", "")
	if gjson.Get(usage, "data.#.model").Raw != `["m"]` || gjson.Get(usage, "data.0.requests").Int() != 2 {
		t.Errorf("usage by model: got %s, want 2 requests of m", usage)
	}
	_, refused := get(t, g, secret, "/v1/completions", completionOf("emm"))
	if got := gjson.Get(refused, "error.available").Raw; got != `["m"]` {
		t.Errorf("available: got %s, want the short id", refused)
	}
}

func TestModelsKeepTheirTimeOfCreationAfterARestart(t *testing.T) {
	c := newConfig(t, model("m", startBackend(t, closedChannel())))
	secret := newKey(t, c)
	created := func(g *gateway.Gateway, id string) int64 {
		_, body := get(t, g, secret, "/v1/models/"+id, "")
		if got := gjson.Get(body, "endpoints").Raw; got != `["/v1/completions"]` {
			t.Errorf("endpoints of %s: got %s", id, body)
		}
		return gjson.Get(body, "created").Int()
	}
	first := start(t, c)
	at := created(first, "m")
	if err := first.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	db, err := database.Open(t.Context(), database.Settings{Path: c.Database.Path}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	err = db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE known_models SET first_seen_at = first_seen_at - 3600000000`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	second := start(t, c)
	if got := created(second, "m"); got != at-3600 {
		t.Errorf("after a restart an hour later: got %d, want %d", got, at-3600)
	}
	next := *c
	next.Models = append(slices.Clone(c.Models), model("n", c.Models[0].Backends[0].URL))
	second.Reload(&next)
	if got := created(second, "m"); got != at-3600 {
		t.Errorf("after a reload: got %d, want %d", got, at-3600)
	}
	if got := created(second, "n"); got < at {
		t.Errorf("a new model: got %d, want %d or later", got, at)
	}
}

func TestKeyDescribesItself(t *testing.T) {
	c := newConfig(t, model("m", startBackend(t, closedChannel())))
	plain := newKey(t, c)
	g, keys := start(t, c), otherProcess(t, c).Keys
	list, err := identity.NewModelList([]string{"m"})
	if err != nil {
		t.Fatal(err)
	}
	caps := quota.Caps{quota.MonthTotal: quota.Limit(1000), quota.DayTotal: quota.Limit(100)}
	expiry := time.Date(2100, 1, 31, 0, 0, 0, 0, time.UTC)
	id, secret := createKey(t, keys, identity.Key{Name: "k", Models: list, ExpiresAt: expiry, Concurrency: 3, Caps: caps})
	if status, body := get(t, g, secret, "/v1/completions", completionOf("m")); status != http.StatusOK {
		t.Fatalf("got %d %s", status, body)
	}
	_, body := get(t, g, secret, "/v1/key", "")
	for path, want := range map[string]string{
		"object": `"key"`, "id": `"` + id + `"`, "name": `"k"`, "prefix": `"` + secret[:13] + `"`, "account": `"ada@example.org"`,
		"models": `["m"]`, "expires_at": `"2100-01-31T00:00:00Z"`, "concurrency": `{"limit":3,"running":0,"waiting":0}`,
		"account_concurrency": `{"limit":32,"running":0,"waiting":0}`,
		"caps.#.scope":        `["key","key"]`, "caps.#.window": `["month","day"]`, "caps.#.meter": `["total","total"]`,
		"caps.#.limit": `[1000,100]`, "caps.#.reserved": `[0,0]`,
	} {
		if got := gjson.Get(body, path).Raw; got != want {
			t.Errorf("%s: got %s, want %s in %s", path, got, want, body)
		}
	}
	used := gjson.Get(body, "caps.0.used").Int()
	if used == 0 || gjson.Get(body, "caps.0.remaining").Int() != 1000-used || gjson.Get(body, "caps.1.remaining").Int() != 100-used {
		t.Errorf("got %s, want what has been used and what remains", body)
	}
	if _, err := time.Parse(time.RFC3339, gjson.Get(body, "caps.1.resets_at").Str); err != nil {
		t.Errorf("resets_at: %v in %s", err, body)
	}
	_, body = get(t, g, plain, "/v1/key", "")
	if gjson.Get(body, "models").Raw != "null" || gjson.Get(body, "expires_at").Raw != "null" || gjson.Get(body, "caps").Raw != "[]" {
		t.Errorf("a key without limits: got %s", body)
	}
	if status, body := get(t, g, "", "/v1/key", ""); status != http.StatusUnauthorized {
		t.Errorf("without a key: got %d %s", status, body)
	}
}

func TestUsageIsThatOfTheKeyAlone(t *testing.T) {
	c := newConfig(t, model("m", startBackend(t, closedChannel())))
	other := newKey(t, c)
	g, keys := start(t, c), otherProcess(t, c).Keys
	_, secret := createKey(t, keys, identity.Key{})
	for _, s := range []string{secret, secret, other} {
		if status, body := get(t, g, s, "/v1/completions", completionOf("m")); status != http.StatusOK {
			t.Fatalf("got %d %s", status, body)
		}
	}
	today := time.Now().UTC().Format(time.DateOnly)
	for by, want := range map[string]string{"day": today, "model": "m", "user": "run 7", "workload": ""} {
		status, body := get(t, g, secret, "/v1/usage?by="+by+"&since="+today+"&until="+today, "")
		row := gjson.Get(body, "data.0")
		if status != http.StatusOK || gjson.Get(body, "object").Str != "list" || row.Get(by).Raw != `"`+want+`"` || row.Get("requests").Int() != 2 {
			t.Errorf("by %s: got %d %s, want two requests of %q", by, status, body, want)
		}
		if total := row.Get("prompt_tokens").Int() + row.Get("completion_tokens").Int(); total == 0 || row.Get("total_tokens").Int() != total {
			t.Errorf("by %s: got tokens %s", by, row.Raw)
		}
	}
	for query, param := range map[string]string{
		"by=key": "by", "since=yesterday": "since", "until=2026-13-01": "until", "b=day": "b", "by=day&by=model": "by",
		"since=2026-01-02&until=2026-01-01": "until",
	} {
		status, body := get(t, g, secret, "/v1/usage?"+query, "")
		if status != http.StatusBadRequest || gjson.Get(body, "error.code").Str != "invalid_request" || gjson.Get(body, "error.param").Str != param {
			t.Errorf("%s: got %d %s, want 400 for %s", query, status, body, param)
		}
	}
	if _, body := get(t, g, secret, "/v1/usage?until=2020-01-01", ""); gjson.Get(body, "data").Raw != "[]" {
		t.Errorf("before the first request: got %s", body)
	}
}

func TestUnknownPathIsAPageInABrowserAndJSONForClients(t *testing.T) {
	g := start(t, newConfig(t, model("m", startBackend(t, closedChannel()))))
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for _, c := range []struct {
		address            net.Addr
		path, accept, want string
	}{
		{g.Addr(), "/nowhere", browser, "text/html; charset=utf-8"},
		{g.Addr(), "/nowhere/below", browser, "text/html; charset=utf-8"},
		{g.Addr(), "/nowhere", "*/*", "application/json"},
		{g.Addr(), "/nowhere", "", "application/json"},
		{g.Addr(), "/nowhere", "application/json, text/html;q=0.5", "application/json"},
		{g.Addr(), "/v1/nowhere", browser, "application/json"},
		{g.AdminAddr(), "/nowhere", browser, "application/json"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+c.address.String()+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", c.accept)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); err != nil || resp.StatusCode != http.StatusNotFound || got != c.want {
			t.Errorf("%s for %q: got %d %s, error %v, want 404 %s", c.path, c.accept, resp.StatusCode, got, err, c.want)
		}
		isPage := strings.Contains(string(body), "Page not found") && resp.Header.Get("Content-Security-Policy") != ""
		if isPage != strings.HasPrefix(c.want, "text/html") {
			t.Errorf("%s for %q: got %.200s", c.path, c.accept, body)
		}
	}
}

func TestHealthIsServedForGETAndHEADOnBothListeners(t *testing.T) {
	g := start(t, newConfig(t, model("m", startBackend(t, closedChannel()))))
	for _, address := range []net.Addr{g.Addr(), g.AdminAddr()} {
		for _, path := range []string{"/healthz", "/health", "/readyz"} {
			for method, want := range map[string]int{http.MethodGet: 200, http.MethodHead: 200, http.MethodPost: 405} {
				req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address.String()+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != want || (method == http.MethodHead) != (len(body) == 0) {
					t.Errorf("%s %s: got %d %q, error %v, want %d", method, path, resp.StatusCode, body, err, want)
				}
				if allow := resp.Header.Get("Allow"); want == 405 && (!strings.Contains(allow, "GET") || !strings.Contains(allow, "HEAD")) {
					t.Errorf("%s %s: got Allow %q", method, path, allow)
				}
			}
		}
	}
}

func TestDiagnosticsAreOnTheAdminListenerOnly(t *testing.T) {
	c := newConfig(t, model("m", startBackend(t, closedChannel())))
	secret := newKey(t, c)
	g := start(t, c)
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/heap", "/debug/pprof/goroutine"} {
		if got := send(t, g.AdminAddr(), "", path, "").StatusCode; got != http.StatusOK {
			t.Errorf("%s on the admin listener: got %d, want 200", path, got)
		}
		if got := send(t, g.Addr(), secret, path, "").StatusCode; got != http.StatusNotFound {
			t.Errorf("%s on the public listener: got %d, want 404", path, got)
		}
	}
	if got := send(t, g.AdminAddr(), secret, "/v1/models", "").StatusCode; got != http.StatusNotFound {
		t.Errorf("/v1/models on the admin listener: got %d, want 404", got)
	}
}

func TestKeysOfAnAccountShareItsSlots(t *testing.T) {
	finish := make(chan struct{})
	c := newConfig(t, model("m", startBackend(t, finish)))
	c.Limits.ConcurrencyPerKey, c.Limits.ConcurrencyPerAccount = 2, 3
	first := newKey(t, c)
	g, keys := start(t, c), otherProcess(t, c).Keys
	_, second := createKey(t, keys, identity.Key{})
	var clients sync.WaitGroup
	for _, secret := range []string{first, first, second, second, second} {
		clients.Go(func() {
			if status, body := get(t, g, secret, "/v1/completions", completionOf("m")); status != http.StatusOK {
				t.Errorf("got %d %s", status, body)
			}
		})
	}
	want := func(concurrency string) {
		t.Helper()
		poll.Until(t, "the account has "+concurrency, func() bool {
			_, body := get(t, g, first, "/v1/key", "")
			return gjson.Get(body, "account_concurrency").Raw == concurrency
		})
	}
	want(`{"limit":3,"running":3,"waiting":2}`)
	next := *c
	next.Limits.ConcurrencyPerAccount = 4
	g.Reload(&next)
	want(`{"limit":4,"running":4,"waiting":1}`) // the fifth waits for its key
	close(finish)
	clients.Wait()
	want(`{"limit":4,"running":0,"waiting":0}`)
}
