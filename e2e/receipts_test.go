//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/internal/postgrestest"
	"basegate/internal/wait"
	"basegate/mockvllm"
)

// receiptSettings are those of a gateway that gives receipts and publishes its tree heads to a file.
func receiptSettings(published string) settings {
	return settings{
		extra:  fmt.Sprintf("receipts: {enabled: true, publish: %q}\nlimits: {concurrency_per_key: 100}", published),
		models: fmt.Sprintf(`{id: m, checkpoint: %s, chat: true, backends: [{name: b0, url: "%%s", gpu: H100}]}`, checkpoint),
	}
}

// newReceipts starts a mock that chats and makes the environment of a gateway that gives receipts.
func newReceipts(t *testing.T) (env *environment, published string) {
	t.Helper()
	mock := startMock(t, mockvllm.Options{ChatTemplate: mockvllm.TemplateChatML})
	published = filepath.Join(t.TempDir(), "tree-head")
	s := receiptSettings(published)
	s.extra = strings.Replace(s.extra, "enabled: true", fmt.Sprintf("enabled: true, key: %q", filepath.Join(t.TempDir(), "key")), 1)
	s.models = fmt.Sprintf(s.models, mock.URL())
	return newEnvironment(t, s), published
}

// withReceipt sends a request that asks for a receipt.
func (g *gateway) withReceipt(path, body string) response {
	g.t.Helper()
	r := g.request(g.t.Context(), http.MethodPost, g.url+path, body)
	r.Header.Set("X-Acs-Receipt", "true")
	return g.do(r)
}

// receiptOf returns the receipt of a response and its leaf hash. A receipt has no proof if its entry was not under a tree head
// within two seconds, and is then asked for again.
func (g *gateway) receiptOf(r response) (text, leaf string) {
	g.t.Helper()
	leaf = r.header.Get("X-Acs-Receipt")
	if _, comment, found := strings.Cut(r.body, "\n: receipt "); found {
		text, _, _ = strings.Cut(comment, "\n")
		leaf = gjson.Get(text, "leaf_hash").Str
	}
	poll.Until(g.t, "the receipt has a proof", func() bool {
		if gjson.Get(text, "checkpoint").Exists() {
			return true
		}
		whole := g.get(g.url, "/receipts/"+leaf+"?nonce=1")
		if whole.status != http.StatusOK {
			g.t.Fatalf("receipt %q: got %d %s", leaf, whole.status, whole.body)
		}
		text = whole.body
		return gjson.Get(text, "checkpoint").Exists()
	})
	return text, leaf
}

// verifyReceipt runs receipt verify in a folder that has the files alone.
func verifyReceipt(t *testing.T, request, answer, receipt string, more ...string) (stdout, stderr string, code int) {
	t.Helper()
	dir := t.TempDir()
	args := []string{"receipt", "verify"}
	for name, text := range map[string]string{"request": request, "answer": answer, "receipt": receipt} {
		path := filepath.Join(dir, name)
		writeFile(t, path, text)
		args = append(args, "--"+name, path)
	}
	return runCommand(t, append(args, more...)...)
}

func TestReceiptsAreVerifiedElsewhereWithTheFilesAlone(t *testing.T) {
	env, published := newReceipts(t)
	g := env.serve()
	key := strings.TrimSpace(env.run("receipt", "key"))
	const chat = `{"model":"m","messages":[{"role":"user","content":"the sea"}],"max_tokens":4`
	for _, c := range []struct{ path, body string }{
		{"/v1/completions", smallRequest},
		{"/v1/completions", `{"model": "m", "prompt": "a", "max_tokens": 5, "stream": true}`},
		{"/v1/completions", `{"model": "m", "prompt": "a", "max_tokens": 5, "stream": true, "stream_options": {"include_receipt": true, "include_usage": true}}`},
		{"/v1/chat/completions", chat + "}"},
		{"/v1/chat/completions", chat + `,"stream":true}`},
		{"/v1/tokenize", `{"model": "m", "prompt": "the sea"}`},
	} {
		got := g.withReceipt(c.path, c.body)
		if got.status != http.StatusOK {
			t.Fatalf("%s: got %d %s", c.body, got.status, got.body)
		}
		text, leaf := g.receiptOf(got)
		if stdout, stderr, code := verifyReceipt(t, c.body, got.body, text, "--key", key); code != 0 || !strings.HasPrefix(stdout, "verified: model=m;checkpoint="+checkpoint) ||
			strings.Contains(stdout, "generated nothing") != (c.path == "/v1/tokenize") || stderr != "" {
			t.Errorf("%s: exit code %d, %s%s", c.body, code, stdout, stderr)
		}
		if _, stderr, code := verifyReceipt(t, c.body, got.body, text); code != 0 || !strings.Contains(stderr, "taken from the receipt itself") {
			t.Errorf("without the key: exit code %d, %s", code, stderr)
		}
		for what, files := range map[string][3]string{
			"the request is not the one":  {c.body + " ", got.body, text},
			"the answer is not the one":   {c.body, strings.Replace(got.body, "{", "{ ", 1), text},
			"the entry was changed":       {c.body, got.body, strings.Replace(text, `"model":"m"`, `"model":"n"`, 1)},
			"parse receipt":               {c.body, got.body, text[:len(text)/2]},
			"the receipt has no entry":    {c.body, got.body, g.get(g.url, "/receipts/"+leaf).body},
			"the entry is not in the log": {c.body, got.body, strings.Replace(text, `"leaf_index":`, `"leaf_index":9`, 1)},
			"it is not a verifier key":    {c.body, got.body, strings.Replace(text, `"log":"`, `"log":"x`, 1)},
		} {
			if _, stderr, code := verifyReceipt(t, files[0], files[1], files[2]); code != 1 || !strings.Contains(stderr, what) {
				t.Errorf("%s: exit code %d, %s", what, code, stderr)
			}
		}
	}
	if _, stderr, code := runCommand(t, "receipt", "verify", "--request", "x"); code != 2 || !strings.Contains(stderr, "required flag") {
		t.Errorf("without files: exit code %d, %s", code, stderr)
	}
	head := g.get(g.url, "/receipts/checkpoint").body
	old := filepath.Join(t.TempDir(), "old")
	writeFile(t, old, head)
	g.withReceipt("/v1/completions", smallRequest)
	if got := env.run("receipt", "log", "check", old); !strings.HasPrefix(got, "consistent: ") {
		t.Errorf("receipt log check says %q", got)
	}
	awaitCommand(t, "the remote log is consistent", func(_, _ string, code int) bool { return code == 0 },
		"receipt", "log", "check", old, "--url", g.url+"/receipts", "--key", key)
	if stdout, stderr, code := runCommand(t, "receipt", "log", "check", published, old, "--url", g.url+"/receipts", "--key", key+"x"); code != 1 {
		t.Errorf("with a wrong key: exit code %d, %s%s", code, stdout, stderr)
	}
	if got := env.run("receipt", "log", "check"); !strings.HasPrefix(got, "the receipt log is whole: ") {
		t.Errorf("receipt log check says %q", got)
	}
}

func TestRestoredDatabaseNeedsANewReceiptLog(t *testing.T) {
	env, _ := newReceipts(t)
	g := env.serve()
	first := g.withReceipt("/v1/completions", smallRequest)
	text, _ := g.receiptOf(first)
	backup := filepath.Join(t.TempDir(), "backup.db")
	env.run("backup", backup)
	key := strings.TrimSpace(env.run("receipt", "key"))
	g.receiptOf(g.withReceipt("/v1/completions", smallRequest))
	g.signal(syscall.SIGTERM)
	g.waitExit()
	if _, stderr, code := runCommand(t, "restore", backup, "--config", env.config); code != 0 || !strings.Contains(stderr, "basegate receipt log new") {
		t.Errorf("restore: exit code %d, %s", code, stderr)
	}
	for _, args := range [][]string{{"serve"}, {"receipt", "log", "check"}} {
		if _, stderr, code := runCommand(t, append(args, "--config", env.config)...); code != 1 || !strings.Contains(stderr, "the receipt log has lost its tail: it has 1 entries, but a tree head of 2") {
			t.Errorf("%v of the restored database: exit code %d, %s", args, code, stderr)
		}
	}
	fresh := strings.TrimSpace(env.run("receipt", "log", "new"))
	g = env.serveWithKey(g.secret)
	again, _ := g.receiptOf(first)
	if _, stderr, code := verifyReceipt(t, smallRequest, first.body, again, "--key", fresh); code != 0 {
		t.Errorf("the new log does not prove the old entry: %s", stderr)
	}
	if _, stderr, code := verifyReceipt(t, smallRequest, first.body, text, "--key", key); code != 0 {
		t.Errorf("the old receipt does not verify with the old key: %s", stderr)
	}
}

// finishedReceipts are the leaf hashes of the answers that clients received completely.
type finishedReceipts struct {
	mu     sync.Mutex
	leaves []string
}

func (f *finishedReceipts) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.leaves)
}

// send sends one request; false if the gateway broke the connection.
func (f *finishedReceipts) send(g *gateway, stream bool) bool {
	body := fmt.Sprintf(`{"model":"m","prompt":"Once upon a time","max_tokens":%d,"stream":%v}`, 1+rand.IntN(12), stream)
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, g.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		g.t.Error(err)
		return false
	}
	r.Header.Set("Authorization", "Bearer "+g.secret)
	r.Header.Set("X-Acs-Receipt", "true")
	resp, err := httpClient.Do(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return false
	}
	leaf := resp.Header.Get("X-Acs-Receipt")
	if stream {
		if !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
			return false
		}
		_, comment, _ := strings.Cut(string(text), "\n: receipt ")
		leaf = gjson.Get(comment, "leaf_hash").Str
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaves = append(f.leaves, leaf)
	return true
}

// The gateway is killed under load, 25 times or as often as BASEGATE_RECEIPT_KILLS says, each time after zero to three finished
// answers. The log extends the tree head that was published last, and at the end it has the entry of each answer that a client
// received completely.
func TestKillUnderLoadKeepsTheReceiptLog(t *testing.T) {
	kills := 25
	if text := os.Getenv("BASEGATE_RECEIPT_KILLS"); text != "" {
		var err error
		kills, err = strconv.Atoi(text)
		must(t, err)
	}
	env, published := newReceipts(t)
	secret := env.createKey("test")
	finished := &finishedReceipts{}
	old := filepath.Join(t.TempDir(), "old")
	for i := range kills {
		g := env.serveWithKey(secret)
		wanted := finished.count() + (i+1)%4
		var clients sync.WaitGroup
		for i := range 16 {
			clients.Go(func() {
				for finished.send(g, i%2 == 0) {
				}
			})
		}
		poll.Until(t, "enough answers are finished, and a head is published", func() bool {
			_, err := os.Stat(published)
			return finished.count() >= wanted && err == nil
		})
		wait.For(t.Context(), time.Duration(20+rand.IntN(100))*time.Millisecond)
		g.signal(syscall.SIGKILL)
		<-g.exited
		clients.Wait()
		head, err := os.ReadFile(published)
		must(t, err)
		writeFile(t, old, string(head))
		env.run("receipt", "log", "check", old) // fails the test unless the database extends it
	}
	g := env.serveWithKey(secret)
	for _, leaf := range finished.leaves {
		if got := g.get(g.url, "/receipts/"+leaf); got.status != http.StatusOK {
			t.Errorf("a finished answer has no receipt %q: %d %s", leaf, got.status, got.body)
		}
	}
	whole := env.run("receipt", "log", "check")
	t.Logf("%d kills, %d finished answers: %s", kills, len(finished.leaves), whole)
	if len(finished.leaves) < kills {
		t.Error("fewer finished answers than kills: the test has not tested enough")
	}
}

// Gateways on one PostgreSQL database have one receipt log, and any of them proves an entry.
func TestGatewaysOfOneDatabaseShareTheReceiptLog(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	s := receiptSettings(filepath.Join(t.TempDir(), "tree-head"))
	s.extra = fmt.Sprintf("receipts: {enabled: true, key: %q}", filepath.Join(t.TempDir(), "key"))
	s.models, s.postgres = fmt.Sprintf(s.models, mock.URL()), postgrestest.Shared(t)
	env := newEnvironment(t, s)
	first := env.serve()
	second := env.another("second").serveWithKey(first.secret)
	key := strings.TrimSpace(env.run("receipt", "key"))
	const stream = `{"model": "m", "prompt": "a", "max_tokens": 5, "stream": true}`
	for i, made := range []*gateway{first, second, first, second} {
		body := []string{smallRequest, stream}[i/2]
		got := made.withReceipt("/v1/completions", body)
		if got.status != http.StatusOK {
			t.Fatalf("%s: got %d %s", body, got.status, got.body)
		}
		text, leaf := made.receiptOf(got)
		for _, g := range []*gateway{first, second} {
			if whole := g.get(g.url, "/receipts/"+leaf+"?nonce=1"); whole.status != http.StatusOK {
				t.Errorf("at another gateway: got %d %s", whole.status, whole.body)
			}
		}
		if stdout, stderr, code := verifyReceipt(t, body, got.body, text, "--key", key); code != 0 {
			t.Errorf("%s: exit code %d, %s%s", body, code, stdout, stderr)
		}
	}
	old := filepath.Join(t.TempDir(), "old")
	writeFile(t, old, first.get(first.url, "/receipts/checkpoint").body)
	first.signal(syscall.SIGKILL)
	first.waitExit()
	second.receiptOf(second.withReceipt("/v1/completions", smallRequest))
	awaitCommand(t, "the log of the other gateway is consistent", func(_, _ string, code int) bool { return code == 0 },
		"receipt", "log", "check", old, "--url", second.url+"/receipts", "--key", key)
	if got := env.run("receipt", "log", "check"); got != "the receipt log is whole: 5 entries under the latest tree head\n" {
		t.Errorf("receipt log check says %q", got)
	}
}
