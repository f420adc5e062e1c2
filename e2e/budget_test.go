//go:build e2e

package e2e_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// ledgerRows reads every row of the ledger straight from the database, including rows in flight.
func (e *environment) ledgerRows(ctx context.Context) (rows []ledgerRow, err error) {
	db, err := e.openDatabase()
	if err != nil {
		return nil, err
	}
	defer db.Close()
	found, err := db.QueryContext(ctx, `SELECT r.request_id, k.prefix, r.state, r.status, r.code, r.user_tag, r.prompt_tokens, r.completion_tokens
		FROM requests r JOIN keys k ON k.id = r.key_id
		UNION ALL
		SELECT r.request_id, k.prefix, 'in_flight', 0, '', r.user_tag, r.prompt_tokens, r.completion_tokens
		FROM inflight r JOIN keys k ON k.id = r.`+e.inflightKey())
	if err != nil {
		return nil, err
	}
	defer found.Close()
	for found.Next() {
		var r ledgerRow
		if err := found.Scan(&r.ID, &r.Key, &r.State, &r.Status, &r.Code, &r.User, &r.Prompt, &r.Completion); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, found.Err()
}

// capKind is a kind of cap: the flag that sets it, its window, and its meter (what it counts).
type capKind struct {
	flag, window, meter string
	limit               int64 // tokens; about a quarter of what the burst asks for
}

var capKinds = []capKind{
	{"--monthly-budget", "month", "total", 3000},
	{"--daily-budget", "day", "total", 3000},
	{"--input-budget", "month", "input", 1000},
	{"--output-budget", "month", "output", 1800},
}

func (k capKind) count(prompt, completion int64) int64 {
	switch k.meter {
	case "input":
		return prompt
	case "output":
		return completion
	default:
		return prompt + completion
	}
}

// requestSpec is a completion request, what its client does, and the figures to check the response against.
type requestSpec struct {
	body        string
	firstKey    bool // sent with the first of the two keys
	stream      bool
	usage       bool  // stream_options.include_usage
	disconnects bool  // the client disconnects before the end
	prompt      int64 // tokens
	n           int64
	maxTokens   int64
	client      *http.Client // nil: httpClient
}

// texts are prompts of one to three bytes a character. Only the tokenizer knows how many tokens they have.
var texts = []string{"Once upon a time", "It was the best of times, it was the worst of times", "Příliš žluťoučký kůň", "昔々"}

// encode returns the mock's tokens of a text.
func encode(t *testing.T, mock *mockvllm.Process, text string, addSpecialTokens bool) (tokens []gjson.Result) {
	t.Helper()
	request := fmt.Sprintf(`{"model":%q,"prompt":%q,"add_special_tokens":%t}`, checkpoint, text, addSpecialTokens)
	resp, err := httpClient.Post(mock.URL()+"/tokenize", "application/json", strings.NewReader(request))
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return gjson.GetBytes(body, "tokens").Array()
}

// requestMix returns a reproducible mix of requests: half are streams, a third have text prompts, in an eighth the
// client disconnects, three quarters use the first key.
func requestMix(t *testing.T, count int, mock *mockvllm.Process) (all []requestSpec) {
	t.Helper()
	tokens := make([]int64, len(texts))
	for i, text := range texts {
		tokens[i] = int64(len(encode(t, mock, text, true)))
	}
	r := rand.New(rand.NewPCG(3, 400))
	for i := range count {
		spec := requestSpec{
			firstKey: i%4 != 0, stream: r.IntN(2) == 0, usage: r.IntN(2) == 0, disconnects: r.IntN(8) == 0,
			n: 1, maxTokens: 1 + r.Int64N(24),
		}
		if r.IntN(4) == 0 {
			spec.n = 2 + r.Int64N(2)
		}
		prompt := fmt.Sprintf("%q", texts[i%len(texts)])
		spec.prompt = tokens[i%len(texts)]
		if r.IntN(3) > 0 {
			spec.prompt = 4 + r.Int64N(16)
			prompt = "[" + strings.TrimSuffix(strings.Repeat("7,", int(spec.prompt)), ",") + "]"
		}
		spec.body = fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":%d,"n":%d`, prompt, spec.maxTokens, spec.n)
		if spec.stream {
			spec.body += fmt.Sprintf(`,"stream":true,"stream_options":{"include_usage":%t}`, spec.usage)
		}
		spec.body += "}"
		all = append(all, spec)
	}
	return all
}

// clientResult is what the client of a request received.
type clientResult struct {
	requestSpec
	status   int
	header   http.Header
	text     string // everything received
	complete bool
	usage    gjson.Result // if the response had it
	events   int64        // with text
	applied  int64        // max_tokens after clamping

	sent, received time.Time // the latter of the response's head
}

func (r *clientResult) id() string { return r.header.Get("X-Request-Id") }

// send sends the request, reads the response, and disconnects early if the spec says so.
func (s requestSpec) send(ctx context.Context, url, secret string) (r clientResult, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.disconnects && !s.stream {
		timer := time.AfterFunc(rand.N(40*time.Millisecond), cancel)
		defer timer.Stop()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(s.body))
	if err != nil {
		return r, err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	sent := time.Now()
	resp, err := cmp.Or(s.client, httpClient).Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	r = clientResult{
		requestSpec: s, status: resp.StatusCode, header: resp.Header, applied: s.maxTokens, sent: sent, received: time.Now(),
	}
	if clamp := r.header.Get("X-Acs-Max-Tokens-Clamped"); clamp != "" {
		var requested int64
		n, _ := fmt.Sscanf(clamp, "requested=%d,applied=%d,reason=budget", &requested, &r.applied)
		if n != 2 || requested != s.maxTokens || r.applied < 1 || r.applied >= requested {
			return r, fmt.Errorf("requested max_tokens %d, got the header %q", s.maxTokens, clamp)
		}
	}
	if s.stream && r.status == http.StatusOK {
		return r, r.follow(resp.Body)
	}
	text, err := io.ReadAll(resp.Body)
	r.text, r.complete, r.usage = string(text), err == nil && r.status == http.StatusOK, gjson.GetBytes(text, "usage")
	return r, err
}

// follow reads a stream to its end, or to its third event if the client disconnects.
func (r *clientResult) follow(from io.Reader) error {
	for lines := bufio.NewReader(from); ; {
		line, err := lines.ReadString('\n')
		r.text += line
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		event := gjson.Parse(strings.TrimPrefix(line, "data: "))
		if event.Get(`choices.#(text!="").index`).Exists() {
			r.events++
		}
		if found := event.Get("usage.total_tokens"); found.Exists() {
			r.usage = event.Get("usage")
		}
		r.complete = r.complete || line == "data: [DONE]\n"
		if r.disconnects && r.events == 3 {
			return nil
		}
	}
}

// burst is many requests at once against the caps of one kind.
type burst struct {
	t        *testing.T
	kind     capKind
	env      *environment
	mock     *mockvllm.Process
	secrets  [2]string
	limits   map[string]int64 // by scope
	requests []requestSpec

	log     *output
	mu      sync.Mutex
	results []clientResult
}

// newBurst sets caps of one kind on the keys; with the scope "both", on their account too.
func newBurst(t *testing.T, kind capKind, scope string) *burst {
	t.Helper()
	b := &burst{t: t, kind: kind, mock: startMock(t, mockvllm.Options{TokenDelay: time.Millisecond}), limits: map[string]int64{}}
	b.env = newEnvironment(t, settings{extra: "limits: {concurrency_per_key: 400}\nbreaker: {consecutive_failures: 100000}"}, b.mock.URL())
	b.requests = requestMix(t, 400, b.mock)
	if scope == "both" {
		b.limits["account"] = kind.limit
		b.env.run("account", "set", b.env.email, kind.flag, fmt.Sprint(kind.limit))
	}
	b.limits["key"] = kind.limit * 11 / 20 // the busier key reaches its own cap first, the other key the account's
	for i, name := range []string{"one", "two"} {
		b.secrets[i] = strings.TrimSpace(b.env.run("key", "create", "--account", b.env.email, "--name", name, kind.flag, fmt.Sprint(b.limits["key"])))
	}
	return b
}

func (b *burst) secretOf(spec requestSpec) string {
	if spec.firstKey {
		return b.secrets[0]
	}
	return b.secrets[1]
}

// used adds up the tokens that the rows charge to each key and to the account.
func (b *burst) used(rows []ledgerRow) (keys [2]int64, account int64) {
	for _, row := range rows {
		if row.State == "in_flight" {
			continue
		}
		tokens := b.kind.count(row.Prompt, row.Completion)
		account += tokens
		for i, secret := range b.secrets {
			if strings.HasPrefix(secret, row.Key) {
				keys[i] += tokens
			}
		}
	}
	return keys, account
}

// checkCaps fails the test if more is used than the caps allow.
func (b *burst) checkCaps(when string, keys [2]int64, account int64) {
	b.t.Helper()
	if limit, ok := b.limits["account"]; ok && account > limit {
		b.t.Errorf("%s: the account used %d tokens, over its cap of %d", when, account, limit)
	}
	if limit := b.limits["key"]; max(keys[0], keys[1]) > limit {
		b.t.Errorf("%s: the keys used %d tokens, over the cap of %d each", when, keys, limit)
	}
}

// watchCaps checks the ledger and the reserved tokens until the burst is over. It reads the rows first: a request that
// settles between the two reads is counted in neither, so the sum never exceeds the actual usage.
func (b *burst) watchCaps(g *gateway, done <-chan struct{}) {
	for {
		rows, err := b.env.ledgerRows(b.t.Context())
		if err != nil {
			b.t.Error(err)
			return
		}
		keys, account := b.used(rows)
		b.checkCaps("during the burst", keys, account)
		if limit, ok := b.limits["account"]; b.kind.meter == "total" {
			if !ok {
				limit = 2 * b.limits["key"]
			}
			if reserved := int64(g.metric("basegate_ledger_reserved_tokens")); account+reserved > limit {
				b.t.Errorf("%d tokens are used and %d reserved, over the cap of %d", account, reserved, limit)
			}
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// run sends all requests at once, stops the gateway when they are done, and returns the ledger's rows.
func (b *burst) run() []ledgerRow {
	for _, fault := range []mockvllm.Fault{
		{Kind: "text", Times: 10},
		{Kind: "reset", Times: 10},
		{Kind: "abort", AfterTokens: 2, Times: 10},
		{Kind: "reset_mid", AfterEvents: 2, Times: 10},
		{Kind: "error_event", AfterEvents: 2, Times: 10},
		{Kind: "no_done", Times: 5},
	} {
		b.mock.InjectFault(fault)
	}
	g := b.env.serveWithKey(b.secrets[0])
	b.log = g.stderr
	var clients, watcher sync.WaitGroup
	done := make(chan struct{})
	watcher.Go(func() { b.watchCaps(g, done) })
	for _, spec := range b.requests {
		clients.Go(func() {
			r, err := spec.send(b.t.Context(), g.url, b.secretOf(spec))
			if err != nil {
				if !spec.disconnects {
					b.t.Errorf("%s: %v", spec.body, err)
				}
				return
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			b.results = append(b.results, r)
		})
	}
	clients.Wait()
	close(done)
	watcher.Wait()
	poll.Until(b.t, "nothing is reserved", func() bool {
		return g.metric("basegate_ledger_reserved_tokens") == 0 && g.metric("basegate_ledger_open_reservations") == 0 &&
			g.metric("basegate_admission_keys") == 0
	})
	g.signal(syscall.SIGTERM)
	if code := g.waitExit(); code != 0 {
		b.t.Errorf("exit code %d, want 0", code)
	}
	rows, err := b.env.ledgerRows(b.t.Context())
	must(b.t, err)
	return rows
}

// checkRefusal checks a 429 response and returns the scope that it names.
func (b *burst) checkRefusal(r *clientResult, used map[string]int64) (scope string) {
	e := gjson.Get(r.text, "error")
	scope = e.Get("scope").Str
	limit := b.limits[scope]
	least := b.kind.count(r.prompt, r.n)
	switch {
	case e.Get("code").Str != "budget_exceeded" || e.Get("type").Str != "insufficient_quota" || r.header.Get("X-Should-Retry") != "false":
		b.t.Errorf("wrong error code, type or X-Should-Retry: %v %s", r.header, r.text)
	case limit == 0 || e.Get("window").Str != b.kind.window || e.Get("meter").Str != b.kind.meter || e.Get("limit").Int() != limit:
		b.t.Errorf("caps %v, but the response names another window, meter or limit: %s", b.limits, r.text)
	case e.Get("used").Int()+least <= limit:
		b.t.Errorf("refused although at least %d tokens were left: %s", least, r.text)
	case e.Get("used").Int()+e.Get("reserved").Int() > limit || !e.Get("reserved").Exists():
		b.t.Errorf("used and reserved exceed the limit: %s", r.text)
	case e.Get("used").Int() > used[scope]:
		b.t.Errorf("reported more used tokens than the final %v: %s", used, r.text)
	case !r.validReset(b.kind.window, e.Get("resets_at").Str):
		b.t.Errorf("resets_at is not the end of the %s: %s", b.kind.window, r.text)
	}
	return scope
}

// validReset reports whether a window that contains the time of the response, or that ended within the minute before the request,
// ends at the time in text.
func (r *clientResult) validReset(window, text string) bool {
	end, err := time.Parse(time.RFC3339, text)
	begin := end.AddDate(0, 0, -1)
	if window == "month" {
		begin = end.AddDate(0, -1, 0)
	}
	midnight := end.Equal(end.UTC().Truncate(24*time.Hour)) && (window == "day" || end.UTC().Day() == 1)
	return err == nil && midnight && !begin.After(r.received) && end.After(r.sent.Add(-time.Minute))
}

// promptEstimated reports whether the gateway logged that it charged a prompt by its bytes, because the tokenizer did not
// respond when a client had disconnected or a stream had broken. On a busy machine the tokenizer's probes can fail.
func (b *burst) promptEstimated(id string) bool {
	return strings.Contains(b.log.String(), `"msg":"a prompt is charged by its bytes","request_id":"`+id)
}

// ledgerWasAway reports whether the gateway logged that the ledger could not be written, on SQLite or on PostgreSQL.
func (b *burst) ledgerWasAway() bool {
	log := b.log.String()
	return strings.Contains(log, "the database cannot be written") || strings.Contains(log, "a call to the ledger has failed")
}

// checkCharge checks the row of a request that was served, completely or in part.
func (b *burst) checkCharge(r *clientResult, row ledgerRow) {
	switch {
	case row.State != "settled":
		b.t.Errorf("request %s: state %s, want settled", r.id(), row.State)
	case r.complete && r.usage.Exists() &&
		(row.Prompt != r.usage.Get("prompt_tokens").Int() || row.Completion != r.usage.Get("completion_tokens").Int()):
		b.t.Errorf("request %s: the response reports %s, the row is %+v", r.id(), r.usage.Raw, row)
	case row.Prompt < r.prompt || row.Prompt > r.prompt && !b.promptEstimated(r.id()):
		b.t.Errorf("a prompt of %d tokens, but the row is %+v", r.prompt, row)
	case row.Completion < r.events || row.Completion > r.n*r.applied:
		b.t.Errorf("%d events received, at most %d×%d tokens, but the row is %+v", r.events, r.n, r.applied, row)
	}
}

// upstreamMaxTokens returns the max_tokens of each request that the mock received, by request ID.
func (b *burst) upstreamMaxTokens() map[string]int64 {
	all := map[string]int64{}
	for _, q := range b.mock.Requests() {
		if q.Path != "/v1/completions" {
			continue
		}
		id := q.Header.Get("X-Request-Id")
		all[id[:strings.LastIndex(id, "-")]] = gjson.GetBytes(q.Body, "max_tokens").Int()
	}
	return all
}

// verify checks every result against the rows and counts the results of each kind.
func (b *burst) verify(rows []ledgerRow) (results map[string]int) {
	byID := map[string]ledgerRow{}
	for _, row := range rows {
		byID[row.ID] = row
		if row.State == "in_flight" {
			b.t.Errorf("a row is still in flight: %+v", row)
		}
	}
	keys, account := b.used(rows)
	b.checkCaps("after the burst", keys, account)
	upstream := b.upstreamMaxTokens()
	results = map[string]int{}
	used := map[string]int64{"key": max(keys[0], keys[1]), "account": account}
	for _, r := range b.results {
		row, found := byID[r.id()]
		maxTokens, sent := upstream[r.id()]
		switch r.status {
		case http.StatusTooManyRequests:
			results["refused by "+b.checkRefusal(&r, used)]++
			if found || sent {
				b.t.Errorf("a refused request reached vLLM (%t) or the ledger: %+v", sent, row)
			}
		case http.StatusOK:
			if !sent || maxTokens != r.applied {
				b.t.Errorf("vLLM received max_tokens %d, the client %d", maxTokens, r.applied)
			}
			b.checkCharge(&r, row)
			results[kindOf(&r)]++
			if r.applied < r.maxTokens {
				results["clamped"]++
			}
		case http.StatusServiceUnavailable: // a disk that stalls for longer than a commit may take
			results["refused without the ledger"]++
			if gjson.Get(r.text, "error.code").Str != "overloaded" || !b.ledgerWasAway() {
				b.t.Errorf("unexpected response: %d %s", r.status, r.text)
			}
			if found && row.Status != r.status || row.Prompt+row.Completion != 0 {
				b.t.Errorf("a refused request is charged: %+v", row)
			}
		case http.StatusBadGateway:
			results["failed"]++
			if row.Prompt+row.Completion != 0 {
				b.t.Errorf("a failed request is charged: %+v", row)
			}
		default:
			b.t.Errorf("unexpected response: %d %s", r.status, r.text)
		}
	}
	b.t.Logf("tokens used by key: %v, by the account: %d; caps: %v; results: %v", keys, account, b.limits, results)
	return results
}

// kindOf names the kind of a response with status 200.
func kindOf(r *clientResult) string {
	switch {
	case r.complete && strings.Contains(r.text, `"finish_reason"`):
		return "complete " + map[bool]string{true: "stream", false: "response"}[r.stream]
	case strings.Contains(r.text, `data: {"error"`):
		return "stream error"
	case r.disconnects:
		return "client disconnected"
	default:
		return "no final event"
	}
}

// 400 clients send requests at once, against each kind of cap on their keys and their account. Some stream, some disconnect,
// some meet a failing backend. Used and reserved tokens never exceed a cap; a refusal states correct figures and happens only
// if the request did not fit; a clamp is the same for the client and for vLLM; every row charges what was used.
func TestBurstNeverExceedsACap(t *testing.T) {
	all := map[string]int{}
	for _, kind := range capKinds {
		for _, scope := range []string{"both", "key"} {
			if scope == "key" && kind != capKinds[0] {
				continue // once is enough: beside an account's cap, it is chance which one the refusals name
			}
			t.Run(kind.window+" "+kind.meter+" of "+scope, func(t *testing.T) {
				b := newBurst(t, kind, scope)
				results := b.verify(b.run())
				for result, n := range results {
					all[result] += n
				}
				if results["refused by key"]+results["refused by account"] == 0 {
					t.Error("no request was refused, so the caps were not tested")
				}
				if results["no final event"] > 0 {
					t.Errorf("%d streams ended without a final event", results["no final event"])
				}
			})
		}
	}
	for _, kind := range []string{
		"complete stream", "complete response", "clamped", "stream error", "client disconnected", "failed", "refused by key", "refused by account",
	} {
		if all[kind] == 0 {
			t.Errorf("no result of the kind %q", kind)
		}
	}
}
