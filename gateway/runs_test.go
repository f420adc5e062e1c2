package gateway_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/budget/quota"
	"basegate/database"
	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

// This file tests runs: keys that keys make, on SQLite, or with three gateways on PostgreSQL.

// lab is an account with a key that may make keys, and the gateways on its database.
type lab struct {
	t        *testing.T
	keys     *identity.Keys // of another process
	parent   identity.Key
	secret   string // of the parent
	gateways []*gateway.Gateway
}

// newLab starts the gateways. account and parent have their caps.
func newLab(t *testing.T, account quota.Caps, parent identity.Key, models ...config.Model) *lab {
	t.Helper()
	n, path := 1, t.TempDir()+"/gateway.db"
	settings := databasetest.Settings(t, path)
	db, err := database.Open(t.Context(), settings, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	store := identity.New(db, zap.NewNop(), identity.Settings{})
	if _, err := store.Accounts.Create(t.Context(), identity.Account{Email: "ada@example.org", Caps: account}); err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, keys: store.Keys}
	parent.Email, parent.Name, parent.Children = "ada@example.org", "parent", sql.NullBool{Bool: true, Valid: true}
	if l.parent, l.secret, err = store.Keys.Create(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	if databasetest.Postgres() {
		n = 3
	}
	for i := range n {
		c := config.Default()
		c.Server.Listen, c.Server.AdminListen, c.Probe.Interval = "127.0.0.1:0", "127.0.0.1:0", 50*time.Millisecond
		c.Models, c.Database.Path = models, path
		c.Limits.ConcurrencyPerKey, c.Limits.ConcurrencyPerAccount = 64, 64
		if settings.URL != "" {
			c.Database.URL, c.Gateway.Name = config.NewSecret(settings.URL), fmt.Sprint("gateway-", i)
		}
		l.gateways = append(l.gateways, start(t, c))
	}
	return l
}

// newMock starts a mock vLLM whose outputs take some time.
func newMock(t *testing.T) config.Model {
	t.Helper()
	mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/m"}, TokenDelay: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Close() })
	address, err := url.Parse(mock.URL())
	if err != nil {
		t.Fatal(err)
	}
	return model("m", address)
}

// do sends a request to a gateway and returns its status and body.
func (l *lab) do(at int, method, secret, path, body string, headers ...string) (int, gjson.Result) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), method, "http://"+l.gateways[at%len(l.gateways)].Addr().String()+path, strings.NewReader(body))
	if err != nil {
		l.t.Error(err)
		return 0, gjson.Result{}
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		l.t.Error(err)
		return 0, gjson.Result{}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Error(err)
	}
	return resp.StatusCode, gjson.ParseBytes(text)
}

// child makes a child and returns its id and secret.
func (l *lab) child(body string) (id, secret string) {
	l.t.Helper()
	status, o := l.do(0, http.MethodPost, l.secret, "/v1/keys", body)
	if status != http.StatusCreated {
		l.t.Fatalf("make a key of %s: got %d %s", body, status, o.Raw)
	}
	return o.Get("id").Str, o.Get("secret").Str
}

// overdrawn returns the caps of a key object of which used and reserved tokens together are more than the limit.
func overdrawn(o gjson.Result) (over []string) {
	for _, c := range o.Get("caps").Array() {
		if c.Get("used").Int()+c.Get("reserved").Int() > c.Get("limit").Int() {
			over = append(over, c.Raw)
		}
	}
	return over
}

func TestNoCapIsExceededWhateverChildrenSendAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		account, parent, child int64
		scope                  string
		limit                  int64 // of all requests together
	}{
		"of each child":  {100_000, 100_000, 60, "key", 10 * 60},
		"of the parent":  {100_000, 500, 1000, "parent", 500},
		"of the account": {450, 10_000, 1000, "account", 450},
	} {
		t.Run(name, func(t *testing.T) {
			parent := identity.Key{Caps: quota.Caps{quota.MonthTotal: quota.Limit(min(c.account, c.parent))}}
			if c.account < c.parent {
				parent.Caps = quota.Caps{quota.LifeTotal: quota.Limit(c.parent)}
			}
			l := newLab(t, quota.Caps{quota.MonthTotal: quota.Limit(c.account)}, parent, newMock(t))
			var secrets []string
			for i := range 10 {
				_, secret := l.child(fmt.Sprintf(`{"name":"c%d","run":"r","budget":{"total":%d}}`, i, c.child))
				secrets = append(secrets, secret)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var watch, requests sync.WaitGroup
			watch.Go(func() {
				for ctx.Err() == nil {
					for i, secret := range secrets {
						if _, o := l.do(i, http.MethodGet, secret, "/v1/key", ""); len(overdrawn(o)) > 0 {
							t.Errorf("over its limit: %v", overdrawn(o))
							return
						}
					}
				}
			})
			var mu sync.Mutex
			refusals := map[string]int{}
			for i := range 200 {
				requests.Go(func() {
					status, o := l.do(i/10, http.MethodPost, secrets[i%10], "/v1/completions",
						`{"model":"m","prompt":[1,2,3],"max_tokens":8,"ignore_eos":true}`)
					switch status {
					case http.StatusOK:
					case http.StatusTooManyRequests:
						mu.Lock()
						refusals[o.Get("error.scope").Str]++
						mu.Unlock()
					default:
						t.Errorf("got %d %s", status, o.Raw)
					}
				})
			}
			requests.Wait()
			cancel()
			watch.Wait()
			if len(refusals) != 1 || refusals[c.scope] == 0 {
				t.Errorf("got refusals %v, want only those by %s", refusals, c.scope)
			}
			var used int64
			for i, secret := range secrets {
				_, o := l.do(i, http.MethodGet, secret, "/v1/key", "")
				used += o.Get(`caps.#(scope=="key").used`).Int()
				if over := overdrawn(o); len(over) > 0 {
					t.Errorf("over its limit: %v", over)
				}
			}
			if least := c.limit - 10*4; used > c.limit || used < least {
				t.Errorf("used %d of %d tokens, want at least %d", used, c.limit, least)
			}
			poll.Until(t, "the usage of the run is that of its keys", func() bool {
				_, o := l.do(0, http.MethodGet, secrets[0], "/v1/usage?by=run", "")
				return o.Get("data.0.run").Str == "r" && o.Get("data.0.total_tokens").Int() > 0
			})
		})
	}
}

func TestKeysMadeByAKey(t *testing.T) {
	l := newLab(t, quota.Caps{}, identity.Key{Concurrency: 16}, newMock(t), withID(newMock(t), "n"))
	status, o := l.do(0, http.MethodPost, l.secret, "/v1/keys",
		`{"name":"eval","run":"mmlu.7","expires_in":3600,"models":["m"],"concurrency":4,"budget":{"total":5000,"output":900},"monthly_budget":7000}`)
	want := map[string]string{
		"object": `"key"`, "name": `"eval"`, "run": `"mmlu.7"`, "parent": `"` + l.parent.ID + `"`, "models": `["m"]`, "concurrency": "4",
		"budget": `{"input":null,"output":900,"total":5000}`, "monthly_budget": "7000",
	}
	for name, value := range want {
		if got := o.Get(name).Raw; got != value {
			t.Errorf("%s: got %s, want %s", name, got, value)
		}
	}
	expires, err := time.Parse(time.RFC3339, o.Get("expires_at").Str)
	if status != http.StatusCreated || err != nil || expires.Before(time.Now()) || o.Get("secret").Str == "" {
		t.Fatalf("got %d %s", status, o.Raw)
	}
	id, secret := o.Get("id").Str, o.Get("secret").Str
	const completion = `{"model":"m","prompt":[1,2,3],"max_tokens":2,"ignore_eos":true}`
	if status, o := l.do(1, http.MethodPost, secret, "/v1/completions", completion); status != http.StatusOK {
		t.Errorf("its request: got %d %s", status, o.Raw)
	}
	if _, o := l.do(1, http.MethodGet, secret, "/v1/models", ""); len(o.Get("data").Array()) != 1 {
		t.Errorf("its models: got %s", o.Raw)
	}
	if _, o := l.do(1, http.MethodGet, l.secret, "/v1/keys/"+id, ""); o.Get(`caps.#(window=="life").used`).Int() != 5 || o.Get("state").Str != "active" {
		t.Errorf("its object: got %s", o.Raw)
	}
	if _, o := l.do(0, http.MethodPost, l.secret, "/v1/completions", completion, "X-Acs-Run: label"); o.Get("error").Exists() {
		t.Errorf("with a run: got %s", o.Raw)
	}
	_, usage := l.do(2, http.MethodGet, l.secret, "/v1/usage?by=run", "")
	if usage.Get("data.0.run").Str != "label" || usage.Get("data.0.requests").Int() != 1 {
		t.Errorf("usage by run: got %s", usage.Raw)
	}
	list := func(query string) int {
		_, o := l.do(0, http.MethodGet, l.secret, "/v1/keys"+query, "")
		return len(o.Get("data").Array())
	}
	l.child(`{"name":"other"}`)
	if all, of, none := list(""), list("?run=mmlu.7"), list("?run=x"); all != 2 || of != 1 || none != 0 {
		t.Errorf("lists: got %d, %d of the run, %d of another", all, of, none)
	}
	if status, o := l.do(0, http.MethodPatch, l.secret, "/v1/keys/"+id, `{"budget":{"total":6000},"expires_in":60,"paused":true}`); status != http.StatusOK ||
		o.Get("state").Str != "paused" || o.Get(`caps.#(window=="life").limit`).Int() != 6000 {
		t.Errorf("after a change: got %d %s", status, o.Raw)
	}
	poll.Until(t, "a paused key is refused", func() bool {
		status, _ := l.do(2, http.MethodGet, secret, "/v1/key", "")
		return status == http.StatusUnauthorized
	})
	l.do(0, http.MethodPatch, l.secret, "/v1/keys/"+id, `{"paused":false}`)
	if status, o := l.do(0, http.MethodDelete, l.secret, "/v1/keys/"+id, ""); status != http.StatusOK || !o.Get("deleted").Bool() {
		t.Errorf("deleted: got %d %s", status, o.Raw)
	}
	if _, o := l.do(0, http.MethodGet, l.secret, "/v1/keys/"+id, ""); o.Get("state").Str != "revoked" || o.Get(`caps.#(window=="life").used`).Int() != 5 {
		t.Errorf("deleted: got %s", o.Raw)
	}
	if _, o := l.do(0, http.MethodPost, l.secret, "/v1/keys", `{"name":"all","models":null}`); o.Get("models").Raw != "null" {
		t.Errorf("a child of every model: got %s", o.Raw)
	}
}

func TestAChildsModelsAreThoseThatItsParentHasToo(t *testing.T) {
	l := newLab(t, quota.Caps{}, identity.Key{}, newMock(t), withID(newMock(t), "n"))
	id, secret := l.child(`{"name":"both","models":["m","n"]}`)
	for models, want := range map[identity.ModelList]string{"n": `["n"]`, "x": `[]`} {
		if _, err := l.keys.Set(t.Context(), l.parent.ID, func(k *identity.Key) { k.Models = models }); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, "the child has what both allow", func() bool {
			_, own := l.do(0, http.MethodGet, secret, "/v1/key", "")
			_, listed := l.do(1, http.MethodGet, l.secret, "/v1/keys/"+id, "")
			return own.Get("models").Raw == want && listed.Get("models").Raw == want
		})
	}
}

func TestAPageHasAHundredChildren(t *testing.T) {
	l := newLab(t, quota.Caps{}, identity.Key{}, newMock(t))
	for range 21 {
		l.child(`{"name":"one of many"}`)
	}
	if _, o := l.do(0, http.MethodGet, l.secret, "/v1/keys", ""); len(o.Get("data").Array()) != 21 || o.Get("has_more").Bool() {
		t.Errorf("got %d children, more: %s", len(o.Get("data").Array()), o.Get("has_more"))
	}
}

func TestTyposOfFieldsAreSuggestedEverywhere(t *testing.T) {
	l := newLab(t, quota.Caps{}, identity.Key{}, newMock(t))
	const form = "--x\r\nContent-Disposition: form-data; name=\"purpos\"\r\n\r\nbatch\r\n--x--\r\n"
	for _, c := range []struct{ path, body, contentType, suggestion string }{
		{"/v1/keys", `{"name":"x","expire_in":5}`, "application/json", "expires_in"},
		{"/v1/load_lora_adapter", `{"lora_nam":"x"}`, "application/json", "lora_name"},
		{"/v1/batches", `{"completion_windw":null}`, "application/json", "completion_window"},
		{"/v1/files", form, "multipart/form-data; boundary=x", "purpose"},
	} {
		status, o := l.do(0, http.MethodPost, l.secret, c.path, c.body, "Content-Type: "+c.contentType)
		if status != http.StatusBadRequest || o.Get("error.suggestion").Str != c.suggestion || !strings.Contains(o.Get("error.message").Str, "did you mean") {
			t.Errorf("%s: got %d %s, want %q", c.path, status, o.Raw, c.suggestion)
		}
	}
}

func withID(m config.Model, id string) config.Model {
	m.ID = id
	return m
}

func TestRefusalsOfKeysMadeByKeys(t *testing.T) {
	account := quota.Caps{quota.MonthTotal: quota.Limit(500), quota.MonthOutput: quota.Limit(50)}
	l := newLab(t, account, identity.Key{Models: "m"}, newMock(t), withID(newMock(t), "n"))
	id, child := l.child(`{"name":"child","run":"r"}`)
	ended, _ := l.child(`{"name":"ended"}`)
	if status, o := l.do(0, http.MethodDelete, l.secret, "/v1/keys/"+ended, ""); status != http.StatusOK {
		t.Fatalf("got %d %s", status, o.Raw)
	}
	_, plain, err := l.keys.Create(t.Context(), identity.Key{Email: "ada@example.org", Name: "plain"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		method, secret, path, body string
		header                     string
		status                     int
		code, param                string
	}{
		"a key without the right":  {"POST", plain, "/v1/keys", `{"name":"x"}`, "", 403, "permission_denied", ""},
		"a child":                  {"POST", child, "/v1/keys", `{"name":"x"}`, "", 403, "permission_denied", ""},
		"no name":                  {"POST", l.secret, "/v1/keys", `{}`, "", 400, "invalid_request", "name"},
		"no JSON":                  {"POST", l.secret, "/v1/keys", `[`, "", 400, "bad_json", ""},
		"an unknown field":         {"POST", l.secret, "/v1/keys", `{"name":"x","color":1}`, "", 400, "invalid_request", "color"},
		"a bad run":                {"POST", l.secret, "/v1/keys", `{"name":"x","run":"a b"}`, "", 400, "invalid_request", "run"},
		"a long run":               {"POST", l.secret, "/v1/keys", `{"name":"x","run":"` + strings.Repeat("a", 65) + `"}`, "", 400, "invalid_request", "run"},
		"an unknown null":          {"POST", l.secret, "/v1/keys", `{"name":"x","colour":null}`, "", 400, "invalid_request", "colour"},
		"a model its parent lacks": {"POST", l.secret, "/v1/keys", `{"name":"x","models":["n"]}`, "", 400, "model_not_found", "models"},
		"more concurrency":         {"POST", l.secret, "/v1/keys", `{"name":"x","concurrency":65}`, "", 400, "invalid_request", "concurrency"},
		"a budget below 0":         {"POST", l.secret, "/v1/keys", `{"name":"x","budget":{"total":-1}}`, "", 400, "invalid_request", "budget"},
		"more than the account":    {"POST", l.secret, "/v1/keys", `{"name":"x","monthly_budget":501}`, "", 400, "invalid_request", "monthly_budget"},
		"more output":              {"PATCH", l.secret, "/v1/keys/" + id, `{"monthly_output_budget":51}`, "", 400, "invalid_request", "monthly_output_budget"},
		"an unknown budget":        {"POST", l.secret, "/v1/keys", `{"name":"x","budget":{"all":1}}`, "", 400, "invalid_request", "budget"},
		"no time":                  {"POST", l.secret, "/v1/keys", `{"name":"x","expires_in":0}`, "", 400, "invalid_request", "expires_in"},
		"no such key":              {"GET", l.secret, "/v1/keys/key_x", "", "", 404, "not_found", "id"},
		"a key of another":         {"GET", plain, "/v1/keys/" + id, "", "", 404, "not_found", "id"},
		"a change of its name":     {"PATCH", l.secret, "/v1/keys/" + id, `{"name":"x"}`, "", 400, "invalid_request", "name"},
		"the first of two":         {"POST", l.secret, "/v1/keys", `{"run":1,"name":"x","budget":1}`, "", 400, "invalid_request", "run"},
		"a pause of an ended key":  {"PATCH", l.secret, "/v1/keys/" + ended, `{"paused":true}`, "", 400, "invalid_request", "id"},
		"more for an ended key":    {"PATCH", l.secret, "/v1/keys/" + ended, `{"budget":{"total":1}}`, "", 400, "invalid_request", "id"},
		"an end of nothing":        {"DELETE", l.secret, "/v1/keys/" + id + "?running=end", "", "", 400, "invalid_request", "running"},
		"a bad header":             {"POST", l.secret, "/v1/completions", `{"model":"m","prompt":"x"}`, "X-Acs-Run: a/b", 400, "invalid_request", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var headers []string
			if c.header != "" {
				headers = []string{c.header}
			}
			status, o := l.do(0, c.method, c.secret, c.path, c.body, headers...)
			if status != c.status || o.Get("error.code").Str != c.code || o.Get("error.param").Str != c.param ||
				strings.Contains(o.Get("error.message").Str, "create key") {
				t.Errorf("got %d %s, want %d %s about %q", status, o.Raw, c.status, c.code, c.param)
			}
		})
	}
	_, expired := l.child(`{"name":"expires","expires_in":1}`)
	poll.Until(t, "a child has expired", func() bool {
		status, _ := l.do(1, http.MethodPost, expired, "/v1/completions", `{"model":"m","prompt":"x","max_tokens":1}`)
		return status == http.StatusUnauthorized
	})
	if _, err := l.keys.Revoke(t.Context(), l.parent.ID); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "a child is refused with its parent", func() bool {
		status, _ := l.do(1, http.MethodGet, child, "/v1/key", "")
		return status == http.StatusUnauthorized
	})
	if status, o := l.do(0, http.MethodPost, l.secret, "/v1/keys", `{"name":"x"}`); status != http.StatusUnauthorized {
		t.Errorf("of a parent that is revoked: got %d %s", status, o.Raw)
	}
}

// The lines of a batch are part of the run that its creation names, or of that of its key.
func TestLinesOfABatchArePartOfItsRun(t *testing.T) {
	databasetest.SkipPostgres(t, "there is no folder for files beside it")
	l := newLab(t, quota.Caps{}, identity.Key{}, newMock(t))
	_, child := l.child(`{"name":"c","run":"own"}`)
	const lines = `{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"x","max_tokens":1}}`
	const file = "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n" + lines + "\r\n--b--\r\n"
	for want, secret := range map[string]string{"label": l.secret, "own": child} {
		_, uploaded := l.do(0, http.MethodPost, secret, "/v1/files", file, "Content-Type: multipart/form-data; boundary=b")
		batch := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"1h"}`, uploaded.Get("id").Str)
		if status, o := l.do(0, http.MethodPost, secret, "/v1/batches", batch, "X-Acs-Run: a/b"); status != http.StatusBadRequest {
			t.Errorf("a bad name: got %d %s", status, o.Raw)
		}
		if status, o := l.do(0, http.MethodPost, secret, "/v1/batches", batch, "X-Acs-Run: label"); status != http.StatusOK {
			t.Fatalf("got %d %s %s", status, o.Raw, uploaded.Raw)
		}
		poll.Until(t, "the line is part of "+want, func() bool {
			_, o := l.do(1, http.MethodGet, secret, "/v1/usage?by=run", "")
			return o.Get("data.#").Int() == 1 && o.Get("data.0.run").Str == want && o.Get("data.0.requests").Int() == 1
		})
	}
}

// stopWithin is a limit for what a stop has to bring about on a machine under load; it is obeyed within a second otherwise.
const stopWithin = 5 * time.Minute

func TestStopOfARunEndsItsRequestsOnEveryGateway(t *testing.T) {
	finish := make(chan struct{})
	defer close(finish)
	l := newLab(t, quota.Caps{}, identity.Key{}, model("m", startBackend(t, finish)))
	_, secret := l.child(fmt.Sprintf(`{"name":"c","run":"r","concurrency":%d}`, len(l.gateways)))
	var streams []*http.Response
	for _, g := range l.gateways {
		streams = append(streams, startStream(t, g, secret, "m"))
	}
	waits := make(chan int, 1)
	go func() {
		status, _ := l.do(0, http.MethodPost, secret, "/v1/completions", `{"model":"m","prompt":"x","stream":true}`)
		waits <- status
	}()
	poll.Until(t, "a request waits", func() bool {
		_, o := l.do(0, http.MethodGet, secret, "/v1/key", "")
		return o.Get("concurrency.waiting").Int() == 1
	})
	if _, err := l.keys.StopRun(t.Context(), l.parent.AccountID, "r"); err != nil {
		t.Fatal(err)
	}
	for _, resp := range streams {
		ended := make(chan string, 1)
		go func() {
			text, _ := io.ReadAll(resp.Body)
			ended <- string(text)
		}()
		select {
		case text := <-ended:
			if !strings.Contains(text, `"code":"invalid_api_key"`) || strings.Contains(text, "[DONE]") {
				t.Errorf("a stream ended with %q, want an event of the error", text)
			}
		case <-time.After(stopWithin):
			t.Fatal("a stream goes on")
		}
	}
	select {
	case status := <-waits:
		if status != http.StatusUnauthorized {
			t.Errorf("what waited: got %d, want 401", status)
		}
	case <-time.After(stopWithin):
		t.Fatal("a request waits on")
	}
	if _, err := l.keys.ResumeRun(t.Context(), l.parent.AccountID, "r"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the key works again", func() bool {
		status, _ := l.do(0, http.MethodGet, secret, "/v1/key", "")
		return status == http.StatusOK
	})
	_, o := l.do(0, http.MethodGet, secret, "/v1/usage", "")
	if got := o.Get("data.0.requests").Int(); got != int64(len(streams)) || o.Get("data.0.completion_tokens").Int() < got {
		t.Errorf("charged %s, want what each of %d streams has sent", o.Raw, len(streams))
	}
}

func TestDeletedKeyEndsWhatItRunsIfAsked(t *testing.T) {
	finish := make(chan struct{})
	l := newLab(t, quota.Caps{}, identity.Key{}, model("m", startBackend(t, finish)))
	last := len(l.gateways) - 1
	kept, goesOn := l.child(`{"name":"goes on"}`)
	ended, isEnded := l.child(`{"name":"is ended"}`)
	first, second := startStream(t, l.gateways[last], goesOn, "m"), startStream(t, l.gateways[last], isEnded, "m")
	l.do(0, http.MethodDelete, l.secret, "/v1/keys/"+kept, "")
	l.do(0, http.MethodDelete, l.secret, "/v1/keys/"+ended+"?running=cancel", "")
	if text := readBody(t, second); !strings.Contains(text, `"code":"invalid_api_key"`) {
		t.Errorf("with running=cancel: the stream ended with %q", text)
	}
	close(finish)
	if text := readBody(t, first); !strings.HasSuffix(text, done) {
		t.Errorf("without: the stream ended with %q, want it complete", text)
	}
}
