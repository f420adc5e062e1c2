//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"basegate/internal/poll"
)

// Hostile users of what many share: uploads, validations, forms, the tokenizer, a backend and the webhook of feedback.
const (
	manyKeys        = "many keys at a full backend"
	spentTokenizer  = "the tokenizer with a spent budget"
	hostileKeys     = 20
	hostileAtOnce   = 8 // requests of each of these keys, as many as may run
	hostileNetworks = 40
	hostileRunning  = 16       // requests that the full backend runs at once
	longLine        = 15 << 20 // bytes of a batch's line, of at most 16 MiB
)

// sharedAttacks are further attacks, each by a user with an account of its own. keys are further ones of the user of manyKeys.
func sharedAttacks(keys *[]string) map[string]func(ctx context.Context, u *hostileUser) {
	return map[string]func(ctx context.Context, u *hostileUser){
		"slow uploads": func(_ context.Context, u *hostileUser) {
			u.holdConnections(u.t, 40, 'x', func(int) []byte {
				head := "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n" +
					"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n"
				return []byte("POST /v1/files HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer " + u.secret +
					"\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000000\r\n\r\n" + head)
			})
		},
		"slow forms": func(_ context.Context, u *hostileUser) {
			u.holdConnections(u.t, 40, 'x', func(int) []byte {
				return []byte("POST /feedback HTTP/1.1\r\nHost: gateway\r\nOrigin: " + u.url +
					"\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 10000\r\n\r\nmessage=")
			})
		},
		"validations of large files": func(ctx context.Context, u *hostileUser) {
			body := batchOf(u.uploadLarge())
			u.repeat(4, heavyPause/2, func() { u.doWith(ctx, u.secret, "/v1/batches", body) })
		},
		"batches of long lines": func(ctx context.Context, u *hostileUser) {
			body := batchOf(u.uploadLongLines())
			u.repeat(4, 10*heavyPause, func() { u.doWith(ctx, u.secret, "/v1/batches", body) })
		},
		"saves beyond the rate": func(ctx context.Context, u *hostileUser) {
			body := `{"name":"n","model":"m","document":{"text":"` + strings.Repeat("x", 3<<20) + `"}}`
			u.repeat(4, 5*attackInterval, func() { u.page(ctx, http.MethodPost, "/console/api/prompts", "application/json", body) })
		},
		spentTokenizer: func(ctx context.Context, u *hostileUser) {
			body := `{"model":"m","prompt":"` + strings.Repeat("some words ", 100_000) + `"}`
			u.repeat(8, 5*attackInterval, func() { u.doWith(ctx, u.secret, "/v1/tokenize", body) })
		},
		"a flood of feedback": func(ctx context.Context, u *hostileUser) {
			var sent atomic.Int64
			u.repeat(8, attackInterval, func() {
				network := fmt.Sprintf("192.0.%d.1", sent.Add(1)%hostileNetworks)
				const form = "page=%2Fusage&message=%3C%21channel%3E+%3Chttps%3A%2F%2Fevil.example%7Cstatus%3E"
				u.do(ctx, http.MethodPost, "/feedback", strings.NewReader(form), int64(len(form)), func(r *http.Request) {
					r.Header.Set("Origin", u.url)
					r.Header.Set("X-Forwarded-For", network)
					r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				})
			})
		},
		manyKeys: func(ctx context.Context, u *hostileUser) {
			for _, secret := range *keys {
				u.repeat(hostileAtOnce, 0, func() { u.doWith(ctx, secret, "/v1/completions", fullRequest) })
			}
		},
	}
}

const fullRequest = `{"model": "f", "prompt": "Once upon a time", "max_tokens": 2, "temperature": 0}`

// doWith sends a JSON body with a key.
func (u *hostileUser) doWith(ctx context.Context, secret, path, body string) {
	u.do(ctx, http.MethodPost, path, strings.NewReader(body), int64(len(body)), func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+secret)
	})
}

// uploadLarge uploads a file whose batch fails at its last line, and returns its id.
func (u *hostileUser) uploadLarge() string {
	var file strings.Builder
	text := strings.Repeat("x", 1000)
	for i := range 20_000 {
		file.WriteString(batchLine(fmt.Sprint(i), `{"model":"m","prompt":"`+text+`","max_tokens":1}`))
	}
	file.WriteString(batchLine("0", `{"model":"m","prompt":"a","max_tokens":1}`))
	return u.uploadBatchFile(file.String())
}

// uploadLongLines uploads a file whose lines are nearly as long as they may be and wait for the full backend, and returns its id.
func (u *hostileUser) uploadLongLines() string {
	var file strings.Builder
	blanks := strings.Repeat(" ", longLine)
	for i := range 12 {
		file.WriteString(batchLine(fmt.Sprint(i), blanks+fullRequest))
	}
	return u.uploadBatchFile(file.String())
}

func (u *hostileUser) uploadBatchFile(lines string) string {
	response := u.upload(u.secret, lines, "purpose", "batch")
	var stored struct{ ID string }
	if err := json.Unmarshal([]byte(response.body), &stored); err != nil || stored.ID == "" {
		u.t.Errorf("the upload of a large file: %d %s", response.status, response.body)
	}
	return stored.ID
}

// batchOf returns the body that makes a batch of a file.
func batchOf(file string) string {
	return fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"24h"}`, file)
}

// spend uses up the budget of a key.
func (g *gateway) spend(secret string) {
	g.t.Helper()
	poll.Until(g.t, "the budget of the key is used up", func() bool {
		got, err := post(g.url, secret, smallRequest)
		return err == nil && got.status == http.StatusTooManyRequests
	})
}

// uploadWhile uploads small files of a key until the load is stopped. None may be refused.
func (l *hostileLoad) uploadWhile(t *testing.T, secret string) {
	t.Helper()
	l.goroutines.Go(func() {
		for l.waitInterval() {
			if got := l.upload(secret, batchLine("a", `{"model":"m","prompt":"a","max_tokens":1}`), "purpose", "batch"); got.status != http.StatusOK {
				t.Errorf("an upload of an honest user: %d %s", got.status, got.body)
			}
		}
	})
}

// served returns how many requests of the user have been served.
func (u *hostileUser) served() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.responses[http.StatusOK]
}

// takeTurns sends requests of another account than the user's to the full backend until the load is stopped. The returned
// function returns how many of the user were served during each, in ascending order.
func (l *hostileLoad) takeTurns(t *testing.T, secret string, u *hostileUser) (served func() []int) {
	t.Helper()
	var all []int
	l.goroutines.Go(func() {
		for l.waitInterval() {
			before := u.served()
			got, err := post(l.url, secret, fullRequest)
			if err != nil || got.status != http.StatusOK {
				t.Errorf("an honest request at the full backend: %d %s %v", got.status, got.body, err)
			}
			all = append(all, u.served()-before)
		}
	})
	return func() []int {
		l.goroutines.Wait()
		slices.Sort(all)
		return all
	}
}

// countMessages is a webhook that counts what it receives, and requires that it mentions nobody.
func countMessages(t *testing.T) (url string, received *atomic.Int64) {
	t.Helper()
	received = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		received.Add(1)
		var message struct{ Text, Content string }
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &message)
		}
		if err != nil || strings.Contains(message.Text+message.Content, "<!channel>") || strings.Contains(message.Text, "<https") {
			t.Errorf("the webhook received %v %s", err, body)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, received
}

// checkMessages requires at most a message a second since a time.
func checkMessages(t *testing.T, received *atomic.Int64, since time.Time) {
	t.Helper()
	n, most := received.Load(), int64(time.Since(since)/time.Second)+2
	if n == 0 || n > most {
		t.Errorf("the webhook of feedback got %d messages, want at least 1 and at most one a second, which is %d", n, most)
	}
}
