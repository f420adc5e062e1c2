package console

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	apierr "basegate/errors"
)

const (
	batchesOfOnePage = 25
	failedLinesShown = 20
)

// batchesPage is the data of the page of batches: of an account, or of all for administrators.
type batchesPage struct {
	Batches []batchRow
	Running bool // one of them has not ended
	Newer   bool // this is not the first page
	First   string
	Older   string // URL of the next page; empty if there is none
}

// batchRow is a batch with what its page shows beside it.
type batchRow struct {
	Batch
	KeyName string
	Email   string    // of the account
	Rate    float64   // lines a second; 0 if it is not known
	Ends    time.Time // estimated; zero if it is not known
}

// batchTexts are the texts and the CSS classes of the states of a batch.
var batchTexts = map[string]struct{ text, level string }{
	"validating":  {"checking the file", "warn"},
	"failed":      {"failed", "bad"},
	"in_progress": {"running", ""},
	"finalizing":  {"finishing", ""},
	"completed":   {"completed", "good"},
	"expired":     {"expired", "bad"},
	"cancelling":  {"cancelling", "warn"},
	"cancelled":   {"cancelled", "warn"},
}

// StatusText returns the status for the user.
func (b *Batch) StatusText() string { return cmp.Or(batchTexts[b.Status].text, b.Status) }

// Level returns the CSS class of the status.
func (b *Batch) Level() string { return batchTexts[b.Status].level }

// Running reports whether the batch has not ended.
func (b *Batch) Running() bool { return b.EndedAt.IsZero() }

// Cancellable reports whether the batch can be cancelled.
func (b *Batch) Cancellable() bool { return b.Status == "validating" || b.Status == "in_progress" }

// Done returns how many lines have a result.
func (b *Batch) Done() int64 { return b.Completed + b.Failed }

// Percent returns the share of lines that have a result.
func (b *Batch) Percent() float64 {
	if b.Total == 0 {
		return 0
	}
	return 100 * float64(b.Done()) / float64(b.Total)
}

// Waiting says what the batch waits for; empty if it does not wait.
func (b *Batch) Waiting() string {
	switch b.WaitingFor {
	case "":
		return ""
	case "budget":
		return "Waiting for budget: a budget of the key or the account is used up."
	case "key":
		return "Waiting for the key, which is paused or expired."
	case "account":
		return "Waiting for the account, which is disabled or not approved."
	case "model":
		return "Waiting for the model to start."
	case "capacity":
		return "Waiting for room: live requests come first."
	case "window":
		return "Waiting for a warm window of the model: batches do not start it."
	}
	return "Waiting for " + b.WaitingFor + "."
}

// Late reports whether the batch is estimated to expire before its end.
func (b *batchRow) Late() bool { return b.Ends.After(b.ExpiresAt) }

// RateText returns the rate with its unit: 0.2, 12.3 or 1,240 lines/s.
func (b *batchRow) RateText() string {
	switch {
	case b.Rate == 0:
		return "–"
	case b.Rate >= 100:
		return formatNumber(int64(math.Round(b.Rate))) + " lines/s"
	case b.Rate >= 0.1:
		return fmt.Sprintf("%.1f lines/s", b.Rate)
	}
	return fmt.Sprintf("%.1f lines/min", 60*b.Rate)
}

// batchRow adds the rate and the estimated end to a batch.
func (c *Console) batchRow(b Batch) batchRow {
	row, now := batchRow{Batch: b}, c.clock()
	row.Rate = c.rates.observe(&b, now)
	if left := b.Total - b.Done(); row.Rate > 0 && b.WaitingFor == "" && left > 0 {
		row.Ends = now.Add(time.Duration(min(float64(left)/row.Rate, 1e8) * float64(time.Second)))
	}
	return row
}

func (c *Console) batchesPage(r *request) error {
	page, err := c.listBatches(r, r.account.ID, "/batches")
	if err != nil {
		return err
	}
	for i := range page.Batches {
		b := &page.Batches[i]
		b.KeyName = c.keyName(b.Key)
	}
	return c.render(r, "batches", "Batches", page)
}

// listBatches returns a page of the batches of an account, or of all if it is empty.
func (c *Console) listBatches(r *request, account, path string) (*batchesPage, error) {
	batches, more, err := c.batches.Batches(r.ctx(), account, r.query("after"), batchesOfOnePage)
	if err != nil {
		return nil, c.batchProblem(r, err)
	}
	page := &batchesPage{Newer: r.query("after") != "", First: path}
	for _, b := range batches {
		page.Batches = append(page.Batches, c.batchRow(b))
		page.Running = page.Running || b.Running()
	}
	if more {
		page.Older = path + "?after=" + url.QueryEscape(batches[len(batches)-1].ID)
	}
	return page, nil
}

// batchPage is the data of a batch's page.
type batchPage struct {
	batchRow
	InputName string        // empty if the file has been deleted
	Failures  []LineProblem // the first lines of the error file
	HasOutput bool          // its files still exist
	HasErrors bool
	Now       time.Time
}

func (c *Console) batchPage(r *request) error {
	b, err := c.batches.Batch(r.ctx(), r.account.ID, r.param("batch"))
	if err != nil {
		return c.batchProblem(r, err)
	}
	page := &batchPage{batchRow: c.batchRow(b), Now: c.clock()}
	page.KeyName = c.keyName(b.Key)
	input, _, err := c.findFile(r, b.InputFile)
	if err == nil {
		page.InputName = input.Name
		_, page.HasOutput, err = c.findFile(r, b.OutputFile)
	}
	if err == nil {
		_, page.HasErrors, err = c.findFile(r, b.ErrorFile)
	}
	if err == nil && page.HasErrors {
		page.Failures, err = c.batches.FailedLines(r.ctx(), r.account.ID, b.ID, failedLinesShown)
	}
	if err != nil {
		return c.batchProblem(r, err)
	}
	return c.render(r, "batch", "Batch "+b.ID, page)
}

// findFile returns a file of the user. It returns false if there is none.
func (c *Console) findFile(r *request, id string) (f StoredFile, found bool, err error) {
	if id == "" {
		return f, false, nil
	}
	f, err = c.batches.File(r.ctx(), r.account.ID, id)
	if e, ok := errors.AsType[*apierr.Error](err); ok && e.Code == apierr.NotFound {
		return f, false, nil
	}
	return f, err == nil, err
}

func (c *Console) cancelBatch(r *request) error {
	if err := c.batches.CancelBatch(r.ctx(), r.account.ID, r.param("batch")); err != nil {
		return c.batchProblem(r, err)
	}
	return c.redirectDone(r, "/batches/"+r.param("batch"), "Batch cancelled. Lines that are running end within a minute.")
}

func (c *Console) adminBatchesPage(r *request) error {
	known, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	page, err := c.listBatches(r, "", "/admin/batches")
	if err != nil {
		return err
	}
	for i := range page.Batches {
		b := &page.Batches[i]
		b.KeyName, b.Email = known.key(b.Key), known.account(b.Account)
	}
	return c.render(r, "admin-batches", "Batches of all accounts", page)
}

func (c *Console) adminCancelBatch(r *request) error {
	if err := c.batches.CancelBatch(r.ctx(), "", r.param("batch")); err != nil {
		return c.batchProblem(r, err)
	}
	return c.redirectDone(r, "/admin/batches", "Batch cancelled. Lines that are running end within a minute.")
}

// batchHint is what the dashboard says about the batches that have not ended.
type batchHint struct {
	Count       int
	Done, Total int64
	Only        string // id of the batch if there is one only
	Waiting     string
}

func (c *Console) batchHint(r *request) (h batchHint, err error) {
	batches, err := c.batches.UnfinishedBatches(r.ctx(), r.account.ID)
	if err != nil {
		return batchHint{}, c.batchProblem(r, err)
	}
	h.Count = len(batches)
	for i := range batches {
		b := &batches[i]
		h.Done, h.Total = h.Done+b.Done(), h.Total+b.Total
		if len(batches) == 1 {
			h.Only, h.Waiting = b.ID, b.Waiting()
		}
	}
	return h, nil
}

const (
	rateSpacing   = 2 * time.Second // between two samples of a batch
	rateSpan      = time.Minute     // over which a rate is measured
	maxRatedBatch = 4096            // batches with samples
)

// batchRates are the progress of the batches whose pages were opened in the last minute.
type batchRates struct {
	mu      sync.Mutex
	samples map[string][]rateSample // by the id of the batch
}

type rateSample struct {
	time time.Time
	done int64
}

// observe returns how many lines of a batch end in a second: since the oldest sample of the last minute, or since the batch
// has begun.
func (s *batchRates) observe(b *Batch, now time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Status != "in_progress" {
		delete(s.samples, b.ID)
		return 0
	}
	if s.samples == nil || len(s.samples) >= maxRatedBatch {
		s.samples = map[string][]rateSample{}
	}
	samples := s.samples[b.ID]
	for len(samples) > 0 && now.Sub(samples[0].time) > rateSpan {
		samples = samples[1:]
	}
	base := rateSample{time: b.StartedAt}
	if len(samples) > 0 && now.Sub(samples[0].time) >= 2*rateSpacing {
		base = samples[0]
	}
	if len(samples) == 0 || now.Sub(samples[len(samples)-1].time) >= rateSpacing {
		samples = append(samples, rateSample{now, b.Done()})
	}
	s.samples[b.ID] = samples
	passed := now.Sub(base.time).Seconds()
	if passed <= 0 || b.StartedAt.IsZero() {
		return 0
	}
	return float64(b.Done()-base.done) / max(passed, 1)
}

// fieldName matches the names of the API's fields. Other names of a body may be any text.
var fieldName = regexp.MustCompile(`^[a-z][a-z0-9_.\[\]]{0,39}$`)

// Field returns the field that a problem is about; empty if its name is not like those of the API.
func (p LineProblem) Field() string {
	if !fieldName.MatchString(p.Param) {
		return ""
	}
	return p.Param
}

// Text returns the message without what it quotes of the line.
func (p LineProblem) Text() string {
	text := withoutQuotes(p.Message)
	if text == "" || p.Param != "" && strings.HasPrefix(text, p.Param) { // a field's name stays as it is
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// gatewayQuote matches the end of a message in which the gateway quotes words of its own, such as the values that it expects. What
// it quotes of a line has a quotation mark that ends it, and the others escaped, so it does not match.
var gatewayQuote = regexp.MustCompile(
	`(?:[;:] expected |, did you mean | here: use the short id | other than )(?:[^"…]*"[\w./-]{1,64}"(?:: …)?)*[^"…]*$`)

// withoutQuotes removes what a message of the validation quotes of a line: all between its first quotation mark and its last
// one, or the last ellipsis, which ends a quotation that was cut. Words at the end that the gateway expects or proposes stay.
func withoutQuotes(message string) string {
	first := strings.IndexByte(message, '"')
	if first < 0 {
		return message
	}
	end := message[max(strings.LastIndexByte(message, '"')+1, strings.LastIndex(message, "…")+len("…")):]
	if at := gatewayQuote.FindStringIndex(message); at != nil {
		if at[0] < first {
			return message
		}
		end = message[at[0]:]
	}
	return message[:first] + "“…”" + end
}
