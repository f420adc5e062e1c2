package usage_test

import (
	"testing"
	"time"
)

// BenchmarkRebuild makes the rollups of 100,000 requests that are spread over nine days, 60 keys and 1,000 user tags.
func BenchmarkRebuild(b *testing.B) {
	const rows = 100_000
	s, db := newStore(b)
	const text = `
		WITH RECURSIVE n (i) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < $1)
		INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
		SELECT 'req_' || i, CAST($2 AS BIGINT) + i * 7776000, 'key_' || (i * 16807 / 4 % 60), 'acc_' || (i * 16807 / 4 % 20),
			'model-' || (i * 40503 / 8 % 3), 'gpu1', '/v1/completions', 'batch', 'user-' || (i * 7919 % 1000), i % 2 = 1,
			200, '', 'settled', 100 + i % 900, 20 + i % 300, i % 1000, 20000 + i * 7919 % 500000, 100000 + i * 7919 % 20000000
		FROM n`
	execute(b, db, text, rows, epoch.UnixMicro())
	b.ResetTimer()
	began := time.Now()
	for range b.N {
		must(b, s.Rebuild(b.Context()))
	}
	b.ReportMetric(float64(rows*b.N)/time.Since(began).Seconds(), "rows/s")
}
