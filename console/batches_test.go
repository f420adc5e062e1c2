package console_test

import (
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/database"
	"basegate/identity"
)

// batch inserts a running batch of a key, whose lines wait for something, or an ended one if that is empty.
func (s *site) batch(k identity.Key, id, file, waitsFor string) {
	s.t.Helper()
	now := time.Now().Unix()
	must(s.t, s.db.WriteExclusive(s.t.Context(), func(tx database.Tx) error {
		err := database.Exec(s.t.Context(), tx, `INSERT INTO files (id, account_id, key_id, purpose, filename, bytes, sha256, lines, created_at, expires_at)
			VALUES ($1, $2, $3, 'batch', $4, 10, $5, 8, $6, $7)`, "file-"+id, k.AccountID, k.ID, file, []byte{1}, now-900, now+9000)
		if err != nil {
			return err
		}
		status, completed := "in_progress", any(nil)
		if waitsFor == "" {
			status, completed = "completed", now-300
		}
		return database.Exec(s.t.Context(), tx, `INSERT INTO batches (id, account_id, key_id, endpoint, completion_window, input_file_id, status, models,
				created_at, expires_at, in_progress_at, completed_at, total, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens, waits_for)
			VALUES ($1, $2, $3, '/v1/completions', '24h', $4, $5, '["llama-8b"]', $6, $7, $8, $9, 8, 2, 0, 0, 0, 0, 0, $10)`,
			id, k.AccountID, k.ID, "file-"+id, status, now-900, now+9000, now-600, completed, waitsFor)
	}))
}

func TestBatchesAreNamedByTheirFilesAndSayHowLongTheyTook(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	s.batch(k, "batch_1", "prompts.jsonl", "")
	b := s.signIn("ada@example.org")
	has(t, b.get("/batches").body, `<a href="/batches/batch_1">prompts.jsonl</a>`, "5 minutes")
	has(t, b.get("/batches/batch_1").body, "<h1>prompts.jsonl</h1>", `<dt>Ended</dt>`, "5 minutes")
	must(t, s.db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		return database.Exec(t.Context(), tx, `DELETE FROM files`)
	}))
	has(t, b.get("/batches").body, `<a href="/batches/batch_1">batch_1</a>`)
	has(t, b.get("/batches/batch_1").body, "<h1>Batch</h1>", "deleted")
}

func TestBatchesSayWhatTheyWaitFor(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	paused, _ := s.key("ada@example.org", "desk")
	s.addRequest(k, budget.Request{}, 1200, 34, "")
	s.batch(k, "batch_b", "b", "budget")
	s.batch(paused, "batch_k", "k", "key")
	s.batch(k, "batch_m", "m", "model")
	b := s.signIn("ada@example.org")
	waits := func(id string, parts ...string) {
		t.Helper()
		has(t, b.get("/batches/"+id).body, parts...)
	}
	waits("batch_b", "Waiting for budget, which requests that are running have reserved.")
	setCap := func(limit int64) {
		t.Helper()
		_, err := s.keys.Set(t.Context(), k.ID, func(f *identity.Key) { f.Caps[quota.DayTotal] = quota.Limit(limit) })
		must(t, err)
	}
	setCap(1300)
	waits("batch_b", "Waiting for budget: 66 tokens are left of the daily budget, too few for the next line.")
	setCap(1234)
	waits("batch_b", "Waiting for the daily budget of the key laptop: 1,234 of 1,234 tokens are used.")
	_, err := s.keys.Pause(t.Context(), paused.ID)
	must(t, err)
	waits("batch_k", "Waiting for the key desk, which is paused.")
	waits("batch_m", "Waiting for llama-8b, which does not respond.")
	has(t, b.get("/dashboard").body, "3 batches running</a>: 6 of 24 lines")
}

func TestFilesShowTheEstimateOfABatchAsAShareOfTheBudget(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	s.batch(k, "batch_1", "prompts.jsonl", "")
	b := s.signIn("ada@example.org")
	lacks(t, b.get("/files/file-batch_1").body, "tokens at most") // the API has stored it without a check
	must(t, s.db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		return database.Exec(t.Context(), tx, `UPDATE files SET tokens = 250000`)
	}))
	for _, c := range []struct {
		limit quota.Cap
		want  string
	}{
		{quota.Unbounded(), "About 250,000 tokens at most, and the key laptop has no budget."},
		{quota.Limit(1_000_000), "About 250,000 tokens at most, 25.0\u202f% of the 1,000,000 that the key laptop has left of the monthly budget."},
		{quota.Limit(1000), "About 250,000 tokens at most: more than the 1,000 that the key laptop has left of the monthly budget."},
	} {
		_, err := s.keys.Set(t.Context(), k.ID, func(f *identity.Key) { f.Caps[quota.MonthTotal] = c.limit })
		must(t, err)
		has(t, b.get("/files/file-batch_1").body, `<span id="estimate">`+c.want, `selected data-estimate="`+c.want)
	}
	s.key("ada@example.org", "desk")
	has(t, b.get("/files/file-batch_1").body, `data-estimate="About 250,000 tokens at most, and the key desk has no budget."`)
	_, err := s.keys.Revoke(t.Context(), k.ID)
	must(t, err)
	has(t, b.get("/files/file-batch_1").body, `<span id="estimate">About 250,000 tokens at most, and the key desk has no budget.`)
}
