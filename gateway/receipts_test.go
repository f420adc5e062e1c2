package gateway_test

import (
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"basegate/gateway/config"
	"basegate/identity"
	"basegate/internal/poll"
)

func TestReceiptsAreReadByTheKeyThatMadeThem(t *testing.T) {
	c := newConfig(t, model("m", startBackend(t, closedChannel())))
	c.Receipts = config.Receipts{Enabled: true, Key: filepath.Join(t.TempDir(), "key")}
	secret := newKey(t, c)
	_, other := createKey(t, otherProcess(t, c).Keys, identity.Key{})
	g := start(t, c)
	stream := readBody(t, send(t, g.Addr(), secret, "/v1/completions", `{"model":"m","prompt":"x","stream":true,"stream_options":{"include_receipt":true}}`))
	found := regexp.MustCompile(`\n: receipt .*"leaf_hash":"([0-9a-f]{64})"`).FindStringSubmatch(stream)
	if found == nil {
		t.Fatalf("the stream has no receipt: %s", stream)
	}
	leaf := "/receipts/" + found[1]
	get := func(key, path string) (status int, body string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr().String()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode, readBody(t, resp)
	}
	poll.Until(t, "the entry is under a tree head", func() bool {
		_, body := get("", leaf)
		return strings.Contains(body, `"inclusion_proof"`)
	})
	for _, c := range []struct {
		key, path   string
		status      int
		has, hasNot string
	}{
		{secret, leaf + "?nonce=1", 200, `"nonce"`, "\x00"},
		{secret, leaf, 200, `"entry"`, `"nonce"`},
		{other, leaf, 200, `"inclusion_proof"`, `"entry"`},
		{other, leaf + "?nonce=1", 404, `"not_found"`, `"entry"`},
		{"", leaf, 200, `"inclusion_proof"`, `"entry"`},
		{"", leaf + "?nonce=1", 401, `"invalid_api_key"`, `"entry"`},
		{"wrong", leaf, 401, `"invalid_api_key"`, `"entry"`},
		{secret, "/receipts/" + strings.Repeat("0", 64), 404, `"not_found"`, `"entry"`},
		{"", "/receipts/checkpoint", 200, "/receipts\n1\n", "\x00"},
		{"", "/receipts/tile/0/000.p/1", 200, "", `"entry"`},
		{"", "/receipts/tile/0/000", 404, `"not_found"`, `"entry"`},
		{secret, "/receipts/tile/entries/000.p/1", 404, `"not_found"`, `"entry":`},
	} {
		if status, body := get(c.key, c.path); status != c.status || !strings.Contains(body, c.has) || strings.Contains(body, c.hasNot) {
			t.Errorf("%s with key %.12q: got %d %s, want %d with %q and without %q", c.path, c.key, status, body, c.status, c.has, c.hasNot)
		}
	}
}
