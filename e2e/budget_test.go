//go:build e2e

package e2e_test

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
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

// onDisk reads the ledger past the gateway: every row, those in flight too.
func (s *site) onDisk(ctx context.Context) (rows []ledgerRow, err error) {
	db, err := sql.Open("sqlite3", "file:"+s.database+"?_query_only=1&_busy_timeout=10000")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	found, err := db.QueryContext(ctx, `SELECT r.request_id, k.prefix, r.state, r.status, r.code, r.user_tag, r.prompt_tokens, r.completion_tokens
		FROM requests r JOIN keys k ON k.id = r.key_id`)
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

// meter is what a cap counts, and the flag that sets it.
type meter struct {
	flag, window, name string
	limit              int64 // about a quarter of what a burst would take
}

var meters = []meter{
	{"--monthly-budget", "month", "total", 3000},
	{"--daily-budget", "day", "total", 3000},
	{"--input-budget", "month", "input", 1000},
	{"--output-budget", "month", "output", 1800},
}

func (m meter) count(prompt, completion int64) int64 {
	switch m.name {
	case "input":
		return prompt
	case "output":
		return completion
	default:
		return prompt + completion
	}
}

// order is a request of a burst.
type order struct {
	body      string
	first     bool // by the first of two keys
	stream    bool
	usage     bool  // asked for on the stream
	leaves    bool  // its client does not stay for the end
	prompt    int64 // tokens
	n         int64
	maxTokens int64
	via       *http.Client // nil: one that keeps no connection
}

// texts are prompts of one to three bytes a character; what they take in tokens only the tokenizer knows.
var texts = []string{"Once upon a time", "It was the best of times, it was the worst of times", "Příliš žluťoučký kůň", "昔々"}

// encode asks the mock itself for a text's tokens.
func encode(t *testing.T, mock *mockvllm.Process, text string, special bool) (tokens []gjson.Result) {
	t.Helper()
	question := fmt.Sprintf(`{"model":%q,"prompt":%q,"add_special_tokens":%t}`, checkpoint, text, special)
	resp, err := client.Post(mock.URL()+"/tokenize", "application/json", strings.NewReader(question))
	must(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	must(t, err)
	return gjson.GetBytes(answer, "tokens").Array()
}

// orders makes a burst: half of it streams, a third of it by text, an eighth of it left, three quarters by the first key.
func orders(t *testing.T, count int, mock *mockvllm.Process) (all []order) {
	t.Helper()
	tokens := make([]int64, len(texts))
	for i, text := range texts {
		tokens[i] = int64(len(encode(t, mock, text, true)))
	}
	r := rand.New(rand.NewPCG(3, 400))
	for i := range count {
		o := order{first: i%4 != 0, stream: r.IntN(2) == 0, usage: r.IntN(2) == 0, leaves: r.IntN(8) == 0, n: 1, maxTokens: 1 + r.Int64N(24)}
		if r.IntN(4) == 0 {
			o.n = 2 + r.Int64N(2)
		}
		prompt := fmt.Sprintf("%q", texts[i%len(texts)])
		o.prompt = tokens[i%len(texts)]
		if r.IntN(3) > 0 {
			o.prompt = 4 + r.Int64N(16)
			prompt = "[" + strings.TrimSuffix(strings.Repeat("7,", int(o.prompt)), ",") + "]"
		}
		o.body = fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":%d,"n":%d`, prompt, o.maxTokens, o.n)
		if o.stream {
			o.body += fmt.Sprintf(`,"stream":true,"stream_options":{"include_usage":%t}`, o.usage)
		}
		o.body += "}"
		all = append(all, o)
	}
	return all
}

// receipt is what the client of an order got.
type receipt struct {
	order
	status  int
	header  http.Header
	text    string // all that came
	whole   bool
	usage   gjson.Result // where it was told
	events  int64        // that had text
	applied int64        // the max_tokens in force
}

func (r *receipt) id() string { return r.header.Get("X-Request-Id") }

// place orders something, and stays for the answer or not.
func (o order) place(ctx context.Context, url, secret string) (r receipt, err error) {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	if o.leaves && !o.stream {
		late := time.AfterFunc(rand.N(40*time.Millisecond), leave)
		defer late.Stop()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(o.body))
	if err != nil {
		return r, err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := cmp.Or(o.via, client).Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	r = receipt{order: o, status: resp.StatusCode, header: resp.Header, applied: o.maxTokens}
	if clamp := r.header.Get("X-Acs-Max-Tokens-Clamped"); clamp != "" {
		var asked int64
		if n, _ := fmt.Sscanf(clamp, "requested=%d,applied=%d,reason=budget", &asked, &r.applied); n != 2 || asked != o.maxTokens || r.applied < 1 || r.applied >= asked {
			return r, fmt.Errorf("%d tokens were asked for, and the answer says %q", o.maxTokens, clamp)
		}
	}
	if o.stream && r.status == http.StatusOK {
		return r, r.follow(resp.Body)
	}
	text, err := io.ReadAll(resp.Body)
	r.text, r.whole, r.usage = string(text), err == nil && r.status == http.StatusOK, gjson.GetBytes(text, "usage")
	return r, err
}

// follow reads a stream to its end, or leaves it at the third event.
func (r *receipt) follow(from io.Reader) error {
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
		r.whole = r.whole || line == "data: [DONE]\n"
		if r.leaves && r.events == 3 {
			return nil
		}
	}
}

// trial is a burst against one meter's caps.
type trial struct {
	t      *testing.T
	meter  meter
	scope  string // key, account or both
	place  *site
	mock   *mockvllm.Process
	secret [2]string
	limit  map[string]int64 // by scope
	asked  []order

	log      *output
	mu       sync.Mutex
	receipts []receipt
}

func newTrial(t *testing.T, m meter, scope string) *trial {
	t.Helper()
	x := &trial{t: t, meter: m, scope: scope, mock: startMock(t, mockvllm.Options{TokenDelay: time.Millisecond}), limit: map[string]int64{}}
	x.place = newSite(t, settings{rest: "limits: {concurrency_per_key: 400}\nbreaker: {consecutive_failures: 100000}"}, x.mock.URL())
	x.asked = orders(t, 400, x.mock)
	if scope != "key" {
		x.limit["account"] = m.limit
		x.place.run("account", "set", x.place.email, m.flag, fmt.Sprint(m.limit))
	}
	keyFlags := []string{}
	if scope != "account" {
		x.limit["key"] = m.limit * 11 / 20 // the busier key finds its own cap, the other one the account's
		keyFlags = append(keyFlags, m.flag, fmt.Sprint(x.limit["key"]))
	}
	for i, name := range []string{"one", "two"} {
		x.secret[i] = strings.TrimSpace(x.place.run(append([]string{"key", "create", "--account", x.place.email, "--name", name}, keyFlags...)...))
	}
	return x
}

func (x *trial) secretOf(o order) string {
	if o.first {
		return x.secret[0]
	}
	return x.secret[1]
}

// used is what the rows say that each key has taken, and the account.
func (x *trial) used(rows []ledgerRow) (keys [2]int64, account int64) {
	for _, row := range rows {
		if row.State == "in_flight" {
			continue
		}
		tokens := x.meter.count(row.Prompt, row.Completion)
		account += tokens
		for i, secret := range x.secret {
			if strings.HasPrefix(secret, row.Key) {
				keys[i] += tokens
			}
		}
	}
	return keys, account
}

// within complains when more is used than the caps allow.
func (x *trial) within(when string, keys [2]int64, account int64) {
	x.t.Helper()
	if limit, ok := x.limit["account"]; ok && account > limit {
		x.t.Errorf("%s %d tokens of the account's %d are used", when, account, limit)
	}
	if limit, ok := x.limit["key"]; ok && max(keys[0], keys[1]) > limit {
		x.t.Errorf("%s %d tokens of a key's %d are used", when, keys, limit)
	}
}

// watch looks at the ledger and at what is reserved until the burst is over. The rows come first: what settles
// meanwhile is in neither, so what it adds up is never more than the truth.
func (x *trial) watch(g *gateway, over <-chan struct{}) {
	for {
		rows, err := x.place.onDisk(x.t.Context())
		if err != nil {
			x.t.Error(err)
			return
		}
		keys, account := x.used(rows)
		x.within("meanwhile", keys, account)
		if limit, ok := x.limit["account"]; x.meter.name == "total" {
			if !ok {
				limit = 2 * x.limit["key"]
			}
			if reserved := int64(g.metric("basegate_ledger_reserved_tokens")); account+reserved > limit {
				x.t.Errorf("%d tokens are used and %d reserved of %d", account, reserved, limit)
			}
		}
		select {
		case <-over:
			return
		default:
		}
	}
}

// run has everybody order at once, stops the gateway, and returns the rows.
func (x *trial) run() []ledgerRow {
	for _, fault := range []mockvllm.Fault{
		{Kind: "text", Times: 10},
		{Kind: "reset", Times: 10},
		{Kind: "abort", AfterTokens: 2, Times: 10},
		{Kind: "reset_mid", AfterEvents: 2, Times: 10},
		{Kind: "error_event", AfterEvents: 2, Times: 10},
		{Kind: "no_done", Times: 5},
	} {
		x.mock.InjectFault(fault)
	}
	g := x.place.serveTo(x.secret[0])
	x.log = g.stderr
	var clients, watcher sync.WaitGroup
	over := make(chan struct{})
	watcher.Go(func() { x.watch(g, over) })
	for _, o := range x.asked {
		clients.Go(func() {
			r, err := o.place(x.t.Context(), g.url, x.secretOf(o))
			if err != nil {
				if !o.leaves {
					x.t.Errorf("%s: %v", o.body, err)
				}
				return
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.receipts = append(x.receipts, r)
		})
	}
	clients.Wait()
	close(over)
	watcher.Wait()
	poll.Until(x.t, "nothing is reserved", func() bool {
		return g.metric("basegate_ledger_reserved_tokens") == 0 && g.metric("basegate_ledger_open_reservations") == 0 && g.metric("basegate_admission_keys") == 0
	})
	g.signal(syscall.SIGTERM)
	if code := g.code(); code != 0 {
		x.t.Errorf("exit code %d", code)
	}
	rows, err := x.place.onDisk(x.t.Context())
	must(x.t, err)
	return rows
}

// refusal checks a 429, and returns the scope that it names.
func (x *trial) refusal(r *receipt, used map[string]int64) (scope string) {
	e := gjson.Get(r.text, "error")
	scope = e.Get("scope").Str
	limit := x.limit[scope]
	least := x.meter.count(r.prompt, r.n)
	switch {
	case e.Get("code").Str != "budget_exceeded" || e.Get("type").Str != "insufficient_quota" || r.header.Get("X-Should-Retry") != "false":
		x.t.Errorf("refused with %v %s", r.header, r.text)
	case limit == 0 || e.Get("window").Str != x.meter.window || e.Get("meter").Str != x.meter.name || e.Get("limit").Int() != limit:
		x.t.Errorf("%v refuse with %s", x.limit, r.text)
	case e.Get("used").Int()+least <= limit:
		x.t.Errorf("%d tokens would have fitted: %s", least, r.text)
	case e.Get("used").Int()+e.Get("reserved").Int() > limit || !e.Get("reserved").Exists():
		x.t.Errorf("more is used and reserved than there is: %s", r.text)
	case e.Get("used").Int() > used[scope]:
		x.t.Errorf("in the end %v tokens were used, and meanwhile more: %s", used, r.text)
	case !resets(x.meter.window, e.Get("resets_at").Str):
		x.t.Errorf("a %s does not end then: %s", x.meter.window, r.text)
	}
	return scope
}

// resets tells whether a window that holds this moment, or one just past, ends at the time that text names.
func resets(window, text string) bool {
	end, err := time.Parse(time.RFC3339, text)
	now := time.Now().UTC()
	begin := end.AddDate(0, 0, -1)
	if window == "month" {
		begin = end.AddDate(0, -1, 0)
	}
	midnight := end.Equal(end.UTC().Truncate(24*time.Hour)) && (window == "day" || end.UTC().Day() == 1)
	return err == nil && midnight && !begin.After(now) && end.After(now.Add(-time.Minute))
}

// estimated tells whether the tokenizer did not answer, which the gateway has to say, when it was to count what a client
// that left, or a stream that broke, had cost. The probes of a machine that is busy can fail.
func (x *trial) estimated(id string) bool {
	return strings.Contains(x.log.String(), `"msg":"a prompt is charged by its bytes","request_id":"`+id)
}

// charge checks the row of a request that was served, wholly or in part.
func (x *trial) charge(r *receipt, row ledgerRow) {
	switch {
	case row.State != "settled":
		x.t.Errorf("%s is %s", r.id(), row.State)
	case r.whole && r.usage.Exists() && (row.Prompt != r.usage.Get("prompt_tokens").Int() || row.Completion != r.usage.Get("completion_tokens").Int()):
		x.t.Errorf("%s: %s was told, and %+v is charged", r.id(), r.usage.Raw, row)
	case row.Prompt < r.prompt || row.Prompt > r.prompt && !x.estimated(r.id()):
		x.t.Errorf("a prompt of %d tokens is charged as %+v", r.prompt, row)
	case row.Completion < r.events || row.Completion > r.n*r.applied:
		x.t.Errorf("%d events came of at most %d×%d tokens, and %+v is charged", r.events, r.n, r.applied, row)
	}
}

// applied are the max_tokens that the mock was asked for, by request.
func (x *trial) applied() map[string]int64 {
	all := map[string]int64{}
	for _, q := range x.mock.Requests() {
		if q.Path != "/v1/completions" {
			continue
		}
		id := q.Header.Get("X-Request-Id")
		all[id[:strings.LastIndex(id, "-")]] = gjson.GetBytes(q.Body, "max_tokens").Int()
	}
	return all
}

// judge checks every receipt against the rows, and tells how many of each kind there were.
func (x *trial) judge(rows []ledgerRow) (kinds map[string]int) {
	byID := map[string]ledgerRow{}
	for _, row := range rows {
		byID[row.ID] = row
		if row.State == "in_flight" {
			x.t.Errorf("%+v is left", row)
		}
	}
	keys, account := x.used(rows)
	x.within("in the end", keys, account)
	upstream := x.applied()
	kinds = map[string]int{}
	used := map[string]int64{"key": max(keys[0], keys[1]), "account": account}
	for _, r := range x.receipts {
		row, found := byID[r.id()]
		asked, sent := upstream[r.id()]
		switch r.status {
		case http.StatusTooManyRequests:
			kinds["refused by "+x.refusal(&r, used)]++
			if found || sent {
				x.t.Errorf("refused, and yet it went to vLLM (%t) or to the ledger: %+v", sent, row)
			}
		case http.StatusOK:
			if !sent || asked != r.applied {
				x.t.Errorf("vLLM was asked for %d tokens, and the client told of %d", asked, r.applied)
			}
			x.charge(&r, row)
			kinds[kindOf(&r)]++
			if r.applied < r.maxTokens {
				kinds["clamped"]++
			}
		case http.StatusBadGateway:
			kinds["failed"]++
			if row.Prompt+row.Completion != 0 {
				x.t.Errorf("a failure costs %+v", row)
			}
		default:
			x.t.Errorf("got %d %s", r.status, r.text)
		}
	}
	x.t.Logf("used %v, together %d, of %v; %v", keys, account, x.limit, kinds)
	return kinds
}

func kindOf(r *receipt) string {
	switch {
	case r.whole && strings.Contains(r.text, `"finish_reason"`):
		return "whole " + map[bool]string{true: "stream", false: "answer"}[r.stream]
	case strings.Contains(r.text, `data: {"error"`):
		return "broken"
	case r.leaves:
		return "left"
	default:
		return "silent"
	}
}

// 400 clients come at once, against every cap of their keys, their account, or both: streaming and not, some leave, some
// find the backend failing. What is used and reserved never passes a cap; who is refused is told the truth, and there
// was no room for what he asked; who is clamped is told how far, and vLLM with him; and every row says what was taken.
func TestABurstSpendsABudgetAndNotATokenMore(t *testing.T) {
	all := map[string]int{}
	for _, m := range meters {
		for _, scope := range []string{"key", "account", "both"} {
			t.Run(m.window+" "+m.name+" of "+scope, func(t *testing.T) {
				x := newTrial(t, m, scope)
				kinds := x.judge(x.run())
				for kind, n := range kinds {
					all[kind] += n
				}
				if kinds["refused by key"]+kinds["refused by account"] == 0 {
					t.Error("nobody was refused, so this has shown nothing")
				}
				if kinds["silent"] > 0 {
					t.Errorf("%d streams ended without a word", kinds["silent"])
				}
			})
		}
	}
	for _, kind := range []string{"whole stream", "whole answer", "clamped", "broken", "left", "failed"} {
		if all[kind] == 0 {
			t.Errorf("%s: there was none", kind)
		}
	}
}
