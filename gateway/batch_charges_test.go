package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/gateway/config"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

// create creates a batch of n lines by the API, and returns its id.
func (s *batchSite) create(n int) string {
	s.t.Helper()
	status, batch := get(s.t, s.gateway, s.secret, "/v1/batches", fmt.Sprintf(
		`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"24h"}`, s.uploadByAPI(lines(n, goodBody))))
	if status != http.StatusOK {
		s.t.Fatalf("create a batch: got %d %s", status, batch)
	}
	return gjson.Get(batch, "id").Str
}

// awaitBatch waits until a batch has a status, and returns it.
func (s *batchSite) awaitBatch(id, status string) (batch gjson.Result) {
	s.t.Helper()
	poll.Until(s.t, "the batch is "+status, func() bool {
		_, text := get(s.t, s.gateway, s.secret, "/v1/batches/"+id, "")
		batch = gjson.Parse(text)
		return batch.Get("status").Str == status
	})
	return batch
}

// charged returns the ledger's rows of a batch, by status and code, and the tokens charged.
func (s *batchSite) charged(id string) (rows map[string]int, input, output int64) {
	s.t.Helper()
	db, err := database.Open(s.t.Context(), database.Settings{Path: s.config.Database.Path}, zap.NewNop())
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	found, err := db.Read().QueryContext(s.t.Context(), `SELECT status, code, prompt_tokens, completion_tokens FROM requests WHERE batch_id = $1`, id)
	if err != nil {
		s.t.Fatal(err)
	}
	defer found.Close()
	rows = map[string]int{}
	for found.Next() {
		var status int
		var code string
		var prompt, completion int64
		if err := found.Scan(&status, &code, &prompt, &completion); err != nil {
			s.t.Fatal(err)
		}
		rows[fmt.Sprint(status, " ", code)]++
		input, output = input+prompt, output+completion
	}
	if err := found.Err(); err != nil {
		s.t.Fatal(err)
	}
	return rows, input, output
}

func (s *batchSite) wantUsage(batch gjson.Result, input, output int64) {
	s.t.Helper()
	u := batch.Get("usage")
	if u.Get("input_tokens").Int() != input || u.Get("output_tokens").Int() != output || u.Get("total_tokens").Int() != input+output || input == 0 {
		s.t.Errorf("the batch's usage is %s, and %d and %d tokens were charged", u.Raw, input, output)
	}
}

// Lines that run when their batch is cancelled are charged as requests whose client disconnects.
func TestLinesCutByACancellationAreChargedWhatWasReceived(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{TokenDelay: time.Hour}, nil)
	id := s.create(3)
	poll.Until(t, "the lines run", func() bool {
		running := 0
		for _, r := range s.mock.Requests() {
			if r.Path == "/v1/completions" {
				running++
			}
		}
		return running == 3
	})
	if status, body := get(t, s.gateway, s.secret, "/v1/batches/"+id+"/cancel", " "); status != http.StatusOK {
		t.Fatalf("cancel: got %d %s", status, body)
	}
	batch := s.awaitBatch(id, "cancelled")
	_, failures := get(t, s.gateway, s.secret, "/v1/files/"+batch.Get("error_file_id").Str+"/content", "")
	if n := strings.Count(failures, `"error":{"code":"batch_cancelled","message":"cancelled while it ran"}`); n != 3 {
		t.Errorf("%d lines were cancelled while they ran, want 3:\n%s", n, failures)
	}
	rows, input, output := s.charged(id)
	if len(rows) != 1 || rows["499 client_gone"] != 3 || output != 0 {
		t.Errorf("the ledger has %v and %d output tokens, want 3 of 499 client_gone and none", rows, output)
	}
	s.wantUsage(batch, input, output)
}

// A batch's usage is what was charged, also where the backend does not report it.
func TestUsageOfABatchCountsWhatTheGatewayCounted(t *testing.T) {
	s := newBatchSite(t, mockvllm.Options{}, func(c *config.Config) {
		silent := httptest.NewServer(withoutUsage(c.Models[0].Backends[0].URL))
		t.Cleanup(silent.Close)
		var err error
		if c.Models[0].Backends[0].URL, err = url.Parse(silent.URL); err != nil {
			t.Fatal(err)
		}
	})
	id := s.create(3)
	batch := s.awaitBatch(id, "completed")
	rows, input, output := s.charged(id)
	if rows["200 "] != 3 || output == 0 {
		t.Errorf("the ledger has %v and %d output tokens, want three successes and some", rows, output)
	}
	s.wantUsage(batch, input, output)
}

// withoutUsage passes requests on to a backend, and takes the usage out of its responses.
func withoutUsage(backend *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(backend) },
		ModifyResponse: func(r *http.Response) error {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			body = bytes.Replace(body, []byte(`"usage":`), []byte(`"unused":`), 1)
			r.Body = io.NopCloser(bytes.NewReader(body))
			r.ContentLength = int64(len(body))
			r.Header.Set("Content-Length", fmt.Sprint(len(body)))
			return nil
		},
	}
}
