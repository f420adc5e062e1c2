package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"basegate/batch"
	apierr "basegate/errors"
	"basegate/proxy"
)

func TestProblemsOfLinesQuoteNothingOfTheLine(t *testing.T) {
	for message, want := range map[string]string{
		"the file has no lines": "The file has no lines",
		`temperature: got the string "a private prompt"; expected a number from 0 to 2`:                `temperature: got the string “…”; expected a number from 0 to 2`,
		`temperature: got the string "` + apierr.Clip(strings.Repeat("private ", 20)) + `; expected 1`: `temperature: got the string “…”; expected 1`,
		`url: got "/private"; expected "/v1/completions", the endpoint of the batch`:                   `Url: got “…”; expected "/v1/completions", the endpoint of the batch`,
		`method: expected "POST"`: `Method: expected "POST"`,
		`truncation_side: got the string "a private prompt"; expected "left" or "right"`:                   `Truncation_side: got the string “…”; expected "left" or "right"`,
		`response_format: got {"private": "text"}; expected {"type": "text"} or {"name": …, "schema": …}}`: `Response_format: got {“…”; expected {"type": "text"} or {"name": …, "schema": …}}`,
		`tool_choice other than "none" has a meaning only with tools`:                                      `Tool_choice other than "none" has a meaning only with tools`,
		`x: got the string "` + apierr.Clip("; expected "+strings.Repeat("private ", 20)) + `; expected 1`: `X: got the string “…”; expected 1`,
		`unknown field "max_tokns", did you mean "max_tokens"?`:                                            `Unknown field “…”, did you mean "max_tokens"?`,
		`no model "org/private" here: use the short id "llama-8b"`:                                         `No model “…” here: use the short id "llama-8b"`,
		`no model "private" here; available: llama-8b, trinity-base`:                                       `No model “…” here; available: llama-8b, trinity-base`,
		`the name "a" private "b" stands twice in one object; send it once`:                                `The name “…” stands twice in one object; send it once`,
	} {
		param := "temperature"
		if got := wrongLines([]batch.LineError{{Message: message, Param: &param}})[0].Text; got != want {
			t.Errorf("%s\ngot  %s\nwant %s", message, got, want)
		}
	}
	for param, want := range map[string]string{
		"max_tokens": "max_tokens", "stream_options.include_usage": "stream_options.include_usage", "a private prompt": "", "": "",
	} {
		if got := wrongLines([]batch.LineError{{Param: &param}})[0].Field; got != want {
			t.Errorf("param %q: got %q, want %q", param, got, want)
		}
	}
}

// A line's text may contain whatever the redaction looks for.
func FuzzProblemsOfLinesQuoteNothingOfTheLine(f *testing.F) {
	for _, text := range []string{`x", did you mean "`, `…`, `"`, `\"`, `; expected "`, `; expected `, `: expected "a": …`, ` other than "`, strings.Repeat("é", 50)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const marker = "P R I V A T E"
		for _, format := range []string{
			"custom_id: got %q; expected another", "got the string %q; expected a number", "unknown field %q, did you mean \"max_tokens\"?",
			"the name \"%s\" stands twice in one object; send it once",
		} {
			for _, quoted := range []string{text + marker, marker + text, text + marker + text} {
				message := fmt.Sprintf(format, quoted)
				if got := withoutQuotes(message); strings.Contains(got, marker) {
					t.Errorf("%q: got %q, which quotes the line", message, got)
				}
			}
		}
	})
}

func TestRateIsThatOfTheLastMinute(t *testing.T) {
	var rates batchRates
	start := time.Unix(1_700_000_000, 0)
	b := &batch.Batch{ID: "batch_1", Status: batch.InProgress, InProgressAt: start.Unix(), Total: 1000}
	for _, step := range []struct {
		after time.Duration
		done  int64
		want  float64
	}{
		{0, 0, 0},
		{10 * time.Second, 100, 10},  // since the sample at 0 s
		{40 * time.Second, 100, 2.5}, // it waits
		{65 * time.Second, 210, 2},   // since the sample at 10 s: that at 0 s is too old
		{10 * time.Minute, 600, 1},   // nobody has looked for long: since it has begun
	} {
		b.Completed = step.done
		if got := rates.observe(b, start.Add(step.after)); got != step.want {
			t.Errorf("after %v with %d lines: got %v lines/s, want %v", step.after, step.done, got, step.want)
		}
	}
	b.Status = batch.Completed
	if got := rates.observe(b, start.Add(time.Hour)); got != 0 || len(rates.samples) != 0 {
		t.Errorf("a batch that has ended: got %v lines/s and %d with samples, want none", got, len(rates.samples))
	}
}

func TestEstimatedEndBehindTheDeadlineIsMarked(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	c := &Console{clock: func() time.Time { return now }}
	b := batch.Batch{
		ID: "batch_1", Status: batch.InProgress, Total: 1000, Completed: 90, Failed: 10,
		InProgressAt: now.Add(-100 * time.Second).Unix(), ExpiresAt: now.Add(time.Hour).Unix(),
	}
	row := c.batchRow(t.Context(), b)
	if want := now.Add(900 * time.Second); !row.Ends.Equal(want) || row.Late() || row.RateText() != "1.0 lines/s" {
		t.Errorf("got %v, late %v, %s, want %v in time at 1.0 lines/s", row.Ends, row.Late(), row.RateText(), want)
	}
	b.ExpiresAt = now.Add(time.Minute).Unix()
	if row = c.batchRow(t.Context(), b); !row.Late() {
		t.Error("an end after the deadline is not marked")
	}
	b.Wait.Reason = proxy.WaitsForCapacity
	if row = c.batchRow(t.Context(), b); !row.Ends.IsZero() {
		t.Errorf("a batch that waits: got the end %v, want none", row.Ends)
	}
}
