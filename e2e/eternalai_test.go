//go:build e2e

package e2e_test

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

// eternalCheckpoint is the model of the example in EternalAI's documentation.
const eternalCheckpoint = "unsloth/Llama-3.3-70B-Instruct-bnb-4bit"

func startEternalGateway(t *testing.T) *gateway {
	t.Helper()
	mock := startMock(t, mockvllm.Options{Models: []string{eternalCheckpoint}})
	return newEnvironment(t, settings{
		extra:  "receipts: {enabled: true}\ndialects: {eternalai: true}",
		models: fmt.Sprintf(`{id: m, checkpoint: %s, backends: [{url: %q}]}`, eternalCheckpoint, mock.URL()),
	}).serve()
}

func (g *gateway) eternal(body string) response {
	g.t.Helper()
	return g.do(g.request(g.t.Context(), http.MethodPost, g.url+"/eternalai/v1/completions", body))
}

// The id of a chain is on the ledger: the usage command tells it, and so does the console's page of the request.
func TestEternalAIChainIDIsRecorded(t *testing.T) {
	g := startEternalGateway(t)
	got := g.eternal(`{"model": "m", "prompt": "a", "max_tokens": 1, "chain_id": 45762}`)
	id := got.header.Get("X-Request-Id")
	if page := g.page(g.signIn(), "/usage/requests/"+id); !regexp.MustCompile(`Chain id</dt><dd[^>]*>45762<`).MatchString(page) {
		t.Errorf("the page of the request lacks the chain id: %s", page)
	}
	row := g.usageRows()[0]
	if row.ChainID != "45762" {
		t.Errorf("the usage command tells the chain id %q, want 45762", row.ChainID)
	}
	if line := g.logLineOf(id); row.ID != id || row.Status != 200 || line["endpoint"] != "POST /eternalai/v1/completions" {
		t.Errorf("the ledger has %+v, the log %v", row, line)
	}
}

func TestEternalAIErrors(t *testing.T) {
	g := startEternalGateway(t)
	for body, want := range map[string]string{
		`{"model": "x/y", "prompt": "a"}`:                      "model",
		`{"model": "m", "prompt": "a", "max_tokens": 1000000}`: "max_tokens",
		`{"model": "m", "prompt": "a", "chain_id": "x"}`:       "chain_id",
	} {
		got := g.eternal(body)
		if e := got.apiError(t); got.status != http.StatusBadRequest || e.Param != want || e.Message == "" || gjson.Get(got.body, "detail").Exists() {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
	if got := g.eternal(`{"model": "m", "prompt": "a", "max_tokens": 1, "best_of": 3, "n": 2, "logprobs": 5, "suffix": null}`); got.status != http.StatusOK {
		t.Errorf("best_of over n, and a suffix that is null: %d %s", got.status, got.body)
	}
	if got := g.get(g.url, "/eternalai/v1/models"); got.status != http.StatusNotFound || !strings.Contains(got.apiError(t).Message, "/eternalai/v1/completions") {
		t.Errorf("another path: %d %s", got.status, got.body)
	}
}

// A request in Lamini's form can have a receipt by the header; its output is the translated response.
func TestLaminiReceipt(t *testing.T) {
	mock := startMock(t, mockvllm.Options{Models: []string{eternalCheckpoint}})
	g := newEnvironment(t, settings{
		extra:  "receipts: {enabled: true}\ndialects: {lamini: true}",
		models: fmt.Sprintf(`{id: m, checkpoint: %s, backends: [{url: %q}]}`, eternalCheckpoint, mock.URL()),
	}).serve()
	const body = `{"model_name": "m", "prompt": "a", "max_tokens": 200, "output_type": {"x": "int"}}`
	r := g.request(t.Context(), http.MethodPost, g.url+"/lamini/v2/completions", body)
	r.Header.Set("X-Acs-Receipt", "true")
	got := g.do(r)
	hash := got.header.Get("X-Acs-Receipt")
	if got.status != http.StatusOK || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(hash) {
		t.Fatalf("%d %v %s", got.status, got.header, got.body)
	}
	receipt := g.get(g.url, "/receipts/"+hash+"?nonce=1").body
	if also := gjson.Get(receipt, "entry.also").Raw; also != `["structured_outputs"]` {
		t.Errorf("the entry has the parameters %s: %s", also, receipt)
	}
	var names []string
	gjson.Get(receipt, "entry.parameters").ForEach(func(name, _ gjson.Result) bool { names = append(names, name.Str); return true })
	if !slices.Equal(names, []string{"max_tokens"}) {
		t.Errorf("the entry has the parameters %q", names)
	}
	nonce := gjson.Get(receipt, "nonce").Str
	for text, member := range map[string]string{body: "entry.input_cid", got.body: "entry.output_cid"} {
		if want := rawCID(t, nonce, text); gjson.Get(receipt, member).Str != want {
			t.Errorf("%s is %s, want %s", member, gjson.Get(receipt, member).Str, want)
		}
	}
}

// rawCID returns the CIDv1 (raw, SHA-256) of a hexadecimal nonce and a text behind it.
func rawCID(t *testing.T, nonce, text string) string {
	t.Helper()
	raw, err := hex.DecodeString(nonce)
	must(t, err)
	sum := sha256.Sum256(append(raw, text...))
	return "ipfs://b" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(append([]byte{1, 0x55, 0x12, 0x20}, sum[:]...)))
}
