package parity_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/e2e/parity"
	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/gateway/logwriter"
	"basegate/identity"
	"basegate/internal/databasetest"
	"basegate/mockvllm"
)

const checkpoint = "org/Model-8B"

// startGateway starts a gateway in front of the backends and returns settings for a run.
func startGateway(t *testing.T, backends ...*mockvllm.Server) parity.Settings {
	t.Helper()
	return startGatewayWith(t, func(*config.Model) {}, backends...)
}

// startGatewayWith is startGateway with a changed model.
func startGatewayWith(t *testing.T, change func(*config.Model), backends ...*mockvllm.Server) parity.Settings {
	t.Helper()
	s := parity.Settings{Model: "m", Checkpoint: checkpoint, Budget: 1_000_000, Transport: &http.Transport{DisableKeepAlives: true}}
	model := config.Model{ID: "m", Checkpoint: checkpoint, MaxLogprobs: 20}
	change(&model)
	for i, mock := range backends {
		server := httptest.NewServer(mock)
		t.Cleanup(server.Close)
		address, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		name := "b" + strconv.Itoa(i)
		model.Backends = append(model.Backends, config.Backend{Name: name, URL: address})
		s.Backends = append(s.Backends, parity.Endpoint{Name: name, URL: server.URL})
	}
	c := config.Default()
	c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	c.Database.Path = filepath.Join(t.TempDir(), "basegate.db")
	c.Models = []config.Model{model}
	s.Gateway = parity.Endpoint{Name: "gateway", Key: createKey(t, c.Database.Path)}
	log := logwriter.New(io.Discard)
	t.Cleanup(func() { log.Close(time.Second) })
	g, err := gateway.New(t.Context(), c, "test", zap.NewNop(), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Stop(context.Background()) })
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Gateway.URL = "http://" + g.Addr().String()
	return s
}

func createKey(t *testing.T, path string) (secret string) {
	t.Helper()
	db, err := database.Open(t.Context(), databasetest.SQLite(t, path), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	store := identity.New(db, zap.NewNop(), identity.Settings{})
	if _, err := store.Accounts.Create(t.Context(), identity.Account{Email: "a@example.org"}); err != nil {
		t.Fatal(err)
	}
	_, secret, err = store.Keys.Create(t.Context(), identity.Key{Email: "a@example.org", Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func newMock(version string) *mockvllm.Server {
	return mockvllm.New(mockvllm.Options{Models: []string{checkpoint}, Version: version})
}

func run(t *testing.T, s parity.Settings) *parity.Report {
	t.Helper()
	report, err := parity.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// expect fails for every comparison whose verdict is not one of the allowed ones.
func expect(t *testing.T, report *parity.Report, allowed ...parity.Verdict) {
	t.Helper()
	for _, row := range report.Rows {
		for mode, result := range map[string]*parity.Result{"plain": row.Plain, "streamed": row.Stream} {
			if result != nil && !slices.Contains(allowed, result.Verdict) {
				t.Errorf("%s, %s: %s (%s), want one of %v", row.Name, mode, result.Verdict, result.Remark, allowed)
			}
		}
	}
}

func TestGatewayIsIdenticalToItsBackends(t *testing.T) {
	versions := []string{"", "0.11.2", "0.8.5"}
	if testing.Short() {
		versions = versions[:1]
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			report := run(t, startGateway(t, newMock(version), newMock(version)))
			expect(t, report, parity.Identical, parity.Documented)
			if n := report.Count(parity.Identical); n < 40 {
				t.Errorf("only %d comparisons are identical: %s", n, report.Summary())
			}
		})
	}
}

func TestEveryModeOfEveryCaseHasAVerdict(t *testing.T) {
	report := run(t, startGateway(t, newMock("")))
	if len(report.Rows) != len(parity.Matrix()) {
		t.Fatalf("%d rows for %d cases", len(report.Rows), len(parity.Matrix()))
	}
	for i, c := range parity.Matrix() {
		row := report.Rows[i]
		if (row.Plain == nil) != (c.Modes == parity.StreamOnly) || (row.Stream == nil) != (c.Modes == parity.PlainOnly) {
			t.Errorf("%s: plain %v, streamed %v", c.Name, row.Plain, row.Stream)
		}
	}
}

// withFaultyGateway puts a proxy in front of the gateway that edits requests and responses; either function may be nil.
func withFaultyGateway(t *testing.T, s parity.Settings, request, response func(string) string) parity.Settings {
	t.Helper()
	target, err := url.Parse(s.Gateway.URL)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(from io.ReadCloser, f func(string) string) (io.ReadCloser, int) {
		text, err := io.ReadAll(from)
		if err != nil {
			t.Error(err)
		}
		if f != nil {
			text = []byte(f(string(text)))
		}
		return io.NopCloser(bytes.NewReader(text)), len(text)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if r.In.Method == http.MethodPost {
				body, length := edit(r.In.Body, request)
				r.Out.Body, r.Out.ContentLength = body, int64(length)
			}
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method != http.MethodPost {
				return nil
			}
			body, length := edit(r.Body, response)
			r.Body, r.ContentLength = body, int64(length)
			r.Header.Set("Content-Length", strconv.Itoa(length))
			return nil
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	s.Gateway.URL = server.URL
	return s
}

func replace(old, replacement string) func(string) string {
	return func(text string) string { return strings.Replace(text, old, replacement, 1) }
}

var plainCase = parity.Case{Name: "plain", Fields: `"temperature": 0, "max_tokens": 4, "logprobs": 1`, Modes: parity.PlainOnly}

var streamCase = parity.Case{
	Name: "stream", Modes: parity.StreamOnly,
	Fields: `"temperature": 0, "max_tokens": 4, "stream_options": {"include_usage": true}`,
}

func TestChangedResponseIsReported(t *testing.T) {
	s := startGateway(t, newMock(""))
	for _, c := range []struct {
		name   string
		of     parity.Case
		change func(string) string
		remark string
	}{
		{"a member is missing", plainCase, replace(`"stop_reason":null,`, ""), "choices.0.stop_reason is missing"},
		{"a member is additional", plainCase, replace(`"index":0,`, `"index":0,"extra":1,`), "choices.0.extra is additional"},
		{"another value", plainCase, replace(`"finish_reason":"length"`, `"finish_reason":"stop"`), "choices.0.finish_reason has another value"},
		{"a space", plainCase, replace(`"index":0`, `"index": 0`), "its members are in another order or spelled in other bytes"},
		{"not JSON", plainCase, func(text string) string { return text[:len(text)-1] }, ""},
		{"an event is missing", streamCase, func(text string) string { return text[strings.Index(text, "\n\n")+2:] }, ""},
		{"no usage", streamCase, replace(`"usage":{`, `"usages":{`), "usage is missing"},
		{"no [DONE]", streamCase, replace("data: [DONE]\n\n", ""), "the stream does not end with [DONE]"},
		{"a comment", streamCase, replace("data: ", ": waiting\n\ndata: "), ""},
		{"other line ends", streamCase, func(text string) string { return strings.ReplaceAll(text, "\n\n", "\r\n\r\n") }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := withFaultyGateway(t, s, nil, c.change)
			s.Cases = []parity.Case{c.of}
			report := run(t, s)
			expect(t, report, parity.Different)
			if remark := report.Rows[0].Remarks(); !strings.Contains(remark, c.remark) {
				t.Errorf("remark %q, want %q", remark, c.remark)
			}
		})
	}
}

func TestChangedRequestIsReported(t *testing.T) {
	s := startGateway(t, newMock(""))
	for _, c := range []struct{ name, fields, old, replacement string }{
		{"max_tokens is dropped", `"max_tokens": 4, "temperature": 0`, `"max_tokens": 4, `, ""},
		{"the seed is rounded", `"seed": 9007199254740993, "temperature": 2`, "9007199254740993", "9007199254740992"},
		{"a bias is dropped", `"logit_bias": {"$A": 100}, "temperature": 0`, `"logit_bias"`, `"user": "u", "logit_bias"`},
		{"echo is dropped", `"echo": true, "temperature": 0`, `"echo": true`, `"echo": false`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := withFaultyGateway(t, s, replace(c.old, c.replacement), nil)
			s.Cases = []parity.Case{{Name: c.name, Fields: c.fields, Modes: parity.PlainOnly}}
			expect(t, run(t, s), parity.Different)
		})
	}
}

func TestWrongErrorIsReported(t *testing.T) {
	s := startGateway(t, newMock(""))
	outOfVocabulary := parity.Case{Name: "unknown id", Fields: `"temperature": 0`, Prompt: "unknown id"}
	unknownField := parity.Case{Name: "unknown field", Fields: `"temprature": 0`, Refused: true}
	for _, c := range []struct {
		name    string
		of      parity.Case
		request func(string) string
		respond func(string) string
	}{
		{"another message", outOfVocabulary, nil, func(text string) string {
			message := gjson.Get(text, "error.message").Raw
			return strings.Replace(text, message, `"bad request"`, 1)
		}},
		{"no request_id", outOfVocabulary, nil, replace(`"request_id"`, `"id"`)},
		{"accepted", unknownField, replace(`"temprature": 0`, `"temperature": 0`), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := withFaultyGateway(t, s, c.request, c.respond)
			s.Cases = []parity.Case{c.of}
			expect(t, run(t, s), parity.Different)
		})
	}
}

func TestRefusalCountsOnlyForItsParameter(t *testing.T) {
	s := startGateway(t, newMock(""))
	s.Cases = []parity.Case{{Name: "refused", Fields: `"temprature": 0`, MayRefuse: "temprature"}}
	expect(t, run(t, s), parity.Documented)
	s.Cases = []parity.Case{{Name: "refused", Fields: `"temprature": 0`, MayRefuse: "min_tokens"}}
	expect(t, run(t, s), parity.Different)
}

// A refusal by max_scored_prompt_tokens is documented for a prompt that may exceed it, and for no other request.
func TestRefusalOfALongPromptToBeScoredIsDocumented(t *testing.T) {
	s := startGatewayWith(t, func(m *config.Model) { m.MaxScoredPromptTokens = 10 }, newMock(""))
	for _, members := range []string{
		`"echo": true, "logprobs": 1, "max_tokens": 1`, `"prompt_logprobs": 0, "max_tokens": 1`,
		`"echo": true, "best_of": 2, "max_tokens": 1`,
	} {
		s.Cases = []parity.Case{{Name: "scored", Fields: members, Prompt: "long", Modes: parity.PlainOnly}}
		s.MaxScored = 10
		report := run(t, s)
		expect(t, report, parity.Documented)
		if got := report.Rows[0].Remarks(); !strings.Contains(got, "max_scored_prompt_tokens") {
			t.Errorf("%s: got remark %q", members, got)
		}
		s.MaxScored = 0 // verify must not expect a refusal that the configuration does not cause
		expect(t, run(t, s), parity.Different)
	}
	s.MaxScored = 10
	s.Cases = []parity.Case{{Name: "not scored", Fields: `"echo": true, "max_tokens": 1, "temperature": 0`, Prompt: "long"}}
	report := run(t, s)
	expect(t, report, parity.Identical, parity.Documented)
	if got := report.Rows[0].Remarks(); strings.Contains(got, "max_scored_prompt_tokens") {
		t.Errorf("a prompt that is not scored: got remark %q", got)
	}
}

func TestNondeterministicBackend(t *testing.T) {
	s := startGateway(t, newMock(""))
	s.Cases = []parity.Case{{Name: "no seed", Fields: `"temperature": 2, "max_tokens": 16`, Modes: parity.PlainOnly}}
	expect(t, run(t, s), parity.Nondeterministic)
	faulty := withFaultyGateway(t, s, nil, replace(`"stop_reason":null,`, ""))
	expect(t, run(t, faulty), parity.Different)
}

// tokenCounter counts the tokens in the usage of all responses.
type tokenCounter struct {
	t      *testing.T
	base   http.RoundTripper
	tokens int64
}

func (c *tokenCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Error(err)
	}
	response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(text))
	c.tokens += gjson.GetBytes(text, "usage.total_tokens").Int()
	return response, nil
}

func TestBudgetIsNeverExceeded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds; make test-all runs it")
	}
	s := startGateway(t, newMock(""))
	all := run(t, s)
	if all.Spent <= 0 || all.Spent > all.Budget {
		t.Fatalf("%d tokens used of %d", all.Spent, all.Budget)
	}
	for _, budget := range []int64{1, 100, 1000, all.Spent / 2} {
		counter := &tokenCounter{t: t, base: s.Transport}
		limited := s
		limited.Budget, limited.Transport = budget, counter
		report := run(t, limited)
		if report.Spent > budget || counter.tokens > report.Spent {
			t.Errorf("budget %d: reported %d tokens, the responses have %d", budget, report.Spent, counter.tokens)
		}
		if report.Count(parity.Skipped) == 0 {
			t.Errorf("budget %d: nothing was skipped", budget)
		}
	}
}

func TestReportShowsNoText(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds; make test-all runs it")
	}
	s := withFaultyGateway(t, startGateway(t, newMock("")), nil, replace(`"text":"`, `"text":"x`))
	var out bytes.Buffer
	report := run(t, s)
	if err := report.WriteMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	if report.Count(parity.Different) == 0 {
		t.Fatal("the changed text was not reported")
	}
	for _, text := range []string{"France", "Once upon", "best of times", "cmpl-"} {
		if strings.Contains(out.String(), text) {
			t.Errorf("the report shows %q", text)
		}
	}
}

func TestUnreachableBackendIsLeftOut(t *testing.T) {
	s := startGateway(t, newMock(""))
	s.Backends = append(s.Backends, parity.Endpoint{Name: "down", URL: "http://127.0.0.1:1"})
	s.Cases = []parity.Case{plainCase}
	report := run(t, s)
	expect(t, report, parity.Identical)
	if down := report.Backends[1]; down.Problem == "" || strings.Contains(down.Problem, "127.0.0.1") {
		t.Errorf("problem of the backend that is down: %q, want one without its address", down.Problem)
	}
	s.Backends = s.Backends[1:]
	if _, err := parity.Run(t.Context(), s); err == nil {
		t.Error("a run without any backend succeeded")
	}
}
