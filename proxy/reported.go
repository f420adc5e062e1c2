package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"

	"basegate/budget/usage"
	"basegate/proxy/stream"
)

// parseReported returns what vLLM reports with --enable-prompt-tokens-details, and since 0.25 with --enable-per-request-metrics. What
// it calls the time to first token begins when the request is scheduled, so that it is the prefill.
func parseReported(d stream.Details) (r usage.Reported) {
	tokens := gjson.GetBytes(d.Usage, "prompt_tokens_details")
	r.CachedTokens = reportedNumber(tokens.Get("cached_tokens"), 1)
	r.CreatedTokens = reportedNumber(tokens.Get("created_cache_tokens"), 1)
	times := gjson.ParseBytes(d.Metrics)
	r.Queue = reportedNumber(times.Get("queue_time_ms"), 1000)
	r.Prefill = reportedNumber(times.Get("time_to_first_token_ms"), 1000)
	r.Between = reportedNumber(times.Get("mean_itl_ms"), 1000)
	return r
}

// maxReported is more than any number of tokens, and in milliseconds more than eleven days.
const maxReported = 1e9

// reportedNumber returns a number, multiplied; nil if it is none that can be.
func reportedNumber(v gjson.Result, by float64) *int64 {
	if v.Type != gjson.Number || !(v.Num >= 0 && v.Num <= maxReported) {
		return nil
	}
	return new(int64(v.Num*by + .5))
}

// limitReported returns what is recorded of a request that is charged for so many prompt tokens: no more of them have been cached, and
// nothing is recorded of one that costs nothing.
func limitReported(r usage.Reported, prompt int64) usage.Reported {
	if prompt == 0 {
		return usage.Reported{}
	}
	for _, n := range []**int64{&r.CachedTokens, &r.CreatedTokens} {
		if *n != nil {
			*n = new(min(**n, prompt))
		}
	}
	return r
}

// reportedMetrics are the metrics of what backends report. A backend that does not report has none.
type reportedMetrics struct {
	cached, known          *prometheus.CounterVec
	queue, prefill, tokens *prometheus.HistogramVec
}

func (m *reportedMetrics) observe(model, backend string, prompt int64, r *usage.Reported) {
	if r.CachedTokens != nil {
		m.cached.WithLabelValues(model, backend).Add(float64(*r.CachedTokens))
		m.known.WithLabelValues(model, backend).Add(float64(prompt))
	}
	for _, t := range []struct {
		into *prometheus.HistogramVec
		took *int64
	}{{m.queue, r.Queue}, {m.prefill, r.Prefill}, {m.tokens, r.Between}} {
		if t.took != nil {
			t.into.WithLabelValues(model, backend).Observe((time.Duration(*t.took) * time.Microsecond).Seconds())
		}
	}
}
