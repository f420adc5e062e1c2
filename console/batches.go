package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"basegate/batch"
	"basegate/budget"
	apierr "basegate/errors"
	"basegate/identity"
	"basegate/proxy"
)

const (
	batchesOfOnePage = 25
	failedLinesShown = 20
)

// batchesPage is the data of the page of batches: of an account, or of all for administrators.
type batchesPage struct {
	Batches []batchRow
	Running bool // one of them has not ended
	pager
}

// batchRow is a batch with what its page shows beside it.
type batchRow struct {
	batch.Batch
	KeyName string
	Email   string        // of the account
	Rate    float64       // lines a second; 0 if it is not known
	Ends    time.Time     // estimated; zero if it is not known
	Took    time.Duration // since the first line began, until now if it has not ended; 0 if none has begun
	Waiting string        // what the batch waits for; empty if it does not wait
}

// batchTexts are the texts and the CSS classes of the states of a batch.
var batchTexts = map[batch.Status]struct{ text, level string }{
	batch.Validating:      {"checking the file", "warn"},
	batch.Failed:          {"failed", "bad"},
	batch.InProgress:      {"running", ""},
	batch.Finalizing:      {"finishing", ""},
	batch.Completed:       {"completed", "good"},
	batch.Expired:         {"expired", "bad"},
	batch.Cancelling:      {"cancelling", "warn"},
	batch.StatusCancelled: {"cancelled", "warn"},
}

func (b *batchRow) StatusText() string { return cmp.Or(batchTexts[b.Status].text, string(b.Status)) }

func (b *batchRow) Level() string { return batchTexts[b.Status].level }

// Running reports whether the batch has not ended.
func (b *batchRow) Running() bool { return b.EndedAt() == 0 }

// EndedAt returns when the batch has ended; 0 if it has not.
func (b *batchRow) EndedAt() int64 {
	return cmp.Or(b.CompletedAt, b.FailedAt, b.ExpiredAt, b.CancelledAt)
}

// Cancellable reports whether the batch can be cancelled.
func (b *batchRow) Cancellable() bool {
	return b.Status == batch.Validating || b.Status == batch.InProgress
}

// Done returns how many lines have a result.
func (b *batchRow) Done() int64 { return b.Completed + b.Failed }

// Percent returns the share of lines that have a result.
func (b *batchRow) Percent() float64 {
	if b.Total == 0 {
		return 0
	}
	return 100 * float64(b.Done()) / float64(b.Total)
}

// waitingText says what a batch waits for; empty if it does not wait.
func (c *Console) waitingText(ctx context.Context, b *batch.Batch) string {
	w := b.WaitsFor()
	if w == nil {
		return ""
	}
	text := string(w.Reason)
	switch w.Reason {
	case proxy.WaitsForBudget:
		text = c.budgetWait(ctx, b.Key)
	case proxy.WaitsForKey:
		text = c.keyWait(b.Key)
	case proxy.WaitsForAccount:
		text = "the account, which is disabled or not approved"
	case proxy.WaitsForModel:
		text = c.modelWait(b.Models)
	case proxy.WaitsForCapacity:
		text = "room at the model’s backends, where live requests come first"
	case proxy.WaitsForWindow:
		text = "a warm window of the model, because batches do not start it"
	}
	return "Waiting for " + text + "."
}

// keyWait says why the lines of a key wait for it.
func (c *Console) keyWait(id string) string {
	key, err := c.Keys.Lookup(id)
	switch {
	case errors.Is(err, identity.ErrKeyPaused):
		return "the key " + key.KeyName + ", which is paused"
	case errors.Is(err, identity.ErrKeyExpired):
		return "the key " + key.KeyName + ", which has expired"
	}
	return "its key"
}

// balance returns a key and what is left of its budgets, and of those above it.
func (c *Console) balance(ctx context.Context, id string) (identity.Principal, budget.Balance) {
	key, _ := c.Keys.Lookup(id)
	return key, c.Ledger.Recent(ctx, proxy.Payer(&key, 0, 0))
}

// estimates returns what a batch costs with each of several keys, by their ids.
func (c *Console) estimates(ctx context.Context, tokens int64, keys []identity.Key) map[string]string {
	of, payers := make([]identity.Principal, len(keys)), make([]budget.Payer, len(keys))
	for i, k := range keys {
		of[i], _ = c.Keys.Lookup(k.ID)
		payers[i] = proxy.Payer(&of[i], 0, 0)
	}
	all := map[string]string{}
	for i, balance := range c.Ledger.RecentOf(ctx, payers) {
		all[keys[i].ID] = estimateText(tokens, &of[i], &balance)
	}
	return all
}

// estimateText says how many tokens a batch costs at most, as a share of what is left of the tightest budget of its key.
func estimateText(tokens int64, key *identity.Principal, balance *budget.Balance) string {
	text := "About " + formatNumber(tokens) + " tokens at most"
	left := tightest(balance.Caps())
	switch {
	case left == nil:
		return text + ", and the key " + key.KeyName + " has no budget."
	case tokens > left.Left:
		return fmt.Sprintf("%s: more than the %s that the key %s has left of the %s budget. Lines that do not fit wait for it.",
			text, formatNumber(left.Left), key.KeyName, left.Name)
	}
	return fmt.Sprintf("%s, %s of the %s that the key %s has left of the %s budget.",
		text, formatShare(tokens, left.Left), formatNumber(left.Left), key.KeyName, left.Name)
}

// budgetWait says which budget the lines of a key wait for.
func (c *Console) budgetWait(ctx context.Context, id string) string {
	key, balance := c.balance(ctx, id)
	of := map[budget.Scope]string{budget.ScopeKey: "of the key " + key.KeyName, budget.ScopeAccount: "of the account"}
	if key.Parent != nil {
		of[budget.ScopeParent] = "of the key " + key.Parent.KeyName
	}
	if e := balance.Exhausted(); e != nil {
		return fmt.Sprintf("the %s%s budget %s: %s of %s tokens are used",
			windowNames[e.Window], meterNames[e.Meter], of[e.Scope], formatNumber(e.Used), formatNumber(e.Limit))
	}
	if left := tightest(balance.Caps()); left != nil {
		return fmt.Sprintf("budget: %s tokens are left of the %s budget, too few for the next line", formatNumber(left.Left), left.Name)
	}
	return "budget, which requests that are running have reserved"
}

// modelWait says which of a batch's models its lines wait for.
func (c *Console) modelWait(ids []string) string {
	for _, id := range ids {
		m, ok := c.Fleet.Model(id)
		if !ok {
			return id + ", which is not configured"
		}
		if row := newModelRow(m); row.Level != "good" {
			return id + ", which " + row.Meaning
		}
	}
	return "its model"
}

// Late reports whether the batch is estimated to expire before its end.
func (b *batchRow) Late() bool { return b.Ends.After(time.Unix(b.ExpiresAt, 0)) }

// RateText returns the rate with its unit: 0.2, 12.3 or 1,240 lines/s.
func (b *batchRow) RateText() string {
	switch {
	case b.Rate == 0:
		return unknown
	case b.Rate >= 100:
		return formatRate(b.Rate) + " lines/s"
	case b.Rate >= 0.1:
		return fmt.Sprintf("%.1f lines/s", b.Rate)
	}
	return fmt.Sprintf("%.1f lines/min", 60*b.Rate)
}

// batchRow adds to a batch how it is getting on.
func (c *Console) batchRow(ctx context.Context, b batch.Batch) batchRow {
	row, now := batchRow{Batch: b, Waiting: c.waitingText(ctx, &b)}, c.clock()
	if b.InProgressAt > 0 {
		row.Took = time.Unix(cmp.Or(row.EndedAt(), now.Unix()), 0).Sub(time.Unix(b.InProgressAt, 0))
	}
	row.Rate = c.rates.observe(&b, now)
	if left := b.Total - row.Done(); row.Rate > 0 && b.WaitsFor() == nil && left > 0 {
		row.Ends = now.Add(time.Duration(min(float64(left)/row.Rate, 1e8) * float64(time.Second)))
	}
	return row
}

// batchesPage lists the batches of the user, or of all accounts below /admin.
func (c *Console) batchesPage(r *request) error {
	account, name, title := r.account.ID, "batches", "Batches"
	if r.isAdministration() {
		account, name, title = "", "admin-batches", "Batches of all accounts"
	}
	batches, more, err := c.Batches.BatchesOf(r.ctx(), account, r.query("after"), batchesOfOnePage)
	if err != nil {
		return c.batchProblem(r, err)
	}
	known := c.names(r)
	page := &batchesPage{}
	for _, b := range batches {
		row := c.batchRow(r.ctx(), b)
		row.KeyName, row.Email = known.key(b.Key), known.Account(b.Account)
		page.Batches = append(page.Batches, row)
		page.Running = page.Running || row.Running()
	}
	next := ""
	if more {
		next = batches[len(batches)-1].ID
	}
	page.pager = r.pager(nil, next)
	return c.render(r, name, title, page)
}

type batchPage struct {
	batchRow
	Problems  []wrongLine        // of its validation
	Failures  []batch.FailedLine // the first lines of the error file
	HasOutput bool               // its files still exist
	HasErrors bool
	Now       time.Time
}

// Said returns the sentence of an error of a line; empty if its code is not known.
func (*batchPage) Said(code string) string { return errorTable[apierr.Code(code)].Text }

func (c *Console) batchPage(r *request) error {
	b, err := c.Batches.BatchOf(r.ctx(), r.account.ID, r.param("batch"))
	if err != nil {
		return c.batchProblem(r, err)
	}
	page := &batchPage{batchRow: c.batchRow(r.ctx(), b), Problems: wrongLines(b.Errors), Now: c.clock()}
	page.KeyName = c.names(r).key(b.Key)
	page.HasOutput, err = c.hasFile(r, b.OutputFile)
	if err == nil {
		page.HasErrors, err = c.hasFile(r, b.ErrorFile)
	}
	if err == nil && page.HasErrors {
		page.Failures, err = c.Batches.FailedLines(r.ctx(), r.account.ID, b.ID, failedLinesShown)
	}
	if err != nil {
		return c.batchProblem(r, err)
	}
	return c.render(r, "batch", "Batch "+cmp.Or(b.InputName, b.ID), page)
}

// hasFile reports whether the user has a file with this id, which may be empty.
func (c *Console) hasFile(r *request, id string) (found bool, err error) {
	if id != "" {
		_, err = c.Batches.FileOf(r.ctx(), r.account.ID, id)
	}
	if e, ok := errors.AsType[*apierr.Error](err); ok && e.Code == apierr.NotFound {
		return false, nil
	}
	return id != "" && err == nil, err
}

// cancelBatch cancels a batch of the user, or of any account below /admin.
func (c *Console) cancelBatch(r *request) error {
	account, page := r.account.ID, "/batches/"+r.param("batch")
	if r.isAdministration() {
		account, page = "", "/admin/batches"
	}
	_, err := c.Batches.CancelOf(r.ctx(), account, r.param("batch"))
	return c.redirectDone(r, c.batchProblem(r, err), page, "Batch cancelled. Lines that are running end within a minute.")
}

// batchHint is what the dashboard says about the batches that have not ended.
type batchHint struct {
	Count       int
	Done, Total int64
	Only        string // id of the batch if there is one only
	Waiting     string
}

func (c *Console) batchHint(r *request) (h batchHint, err error) {
	batches, err := c.Batches.UnfinishedOf(r.ctx(), r.account.ID)
	if err != nil {
		return batchHint{}, c.batchProblem(r, err)
	}
	h.Count = len(batches)
	for i := range batches {
		b := &batches[i]
		h.Done, h.Total = h.Done+b.Completed+b.Failed, h.Total+b.Total
		if len(batches) == 1 {
			h.Only, h.Waiting = b.ID, c.waitingText(r.ctx(), b)
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
func (s *batchRates) observe(b *batch.Batch, now time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Status != batch.InProgress {
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
	done, base := b.Completed+b.Failed, rateSample{time: time.Unix(b.InProgressAt, 0)}
	if len(samples) > 0 && now.Sub(samples[0].time) >= 2*rateSpacing {
		base = samples[0]
	}
	if len(samples) == 0 || now.Sub(samples[len(samples)-1].time) >= rateSpacing {
		samples = append(samples, rateSample{now, done})
	}
	s.samples[b.ID] = samples
	passed := now.Sub(base.time).Seconds()
	if passed <= 0 || b.InProgressAt == 0 {
		return 0
	}
	return float64(done-base.done) / max(passed, 1)
}

// fieldName matches the names of the API's fields. Other names of a body may be any text.
var fieldName = regexp.MustCompile(`^[a-z][a-z0-9_.\[\]]{0,39}$`)

// wrongLine is a wrong line of an input file as pages show it: they quote nothing of it.
type wrongLine struct {
	Line  int64  `json:"line"` // from 1; 0 if the problem is that of the whole file
	Code  string `json:"code"`
	Field string `json:"field"`
	Text  string `json:"text"`
}

func wrongLines(errs []batch.LineError) []wrongLine {
	lines := make([]wrongLine, len(errs))
	for i, e := range errs {
		lines[i] = wrongLine{Code: e.Code, Text: problemText(e)}
		if e.Line != nil {
			lines[i].Line = *e.Line
		}
		if e.Param != nil && fieldName.MatchString(*e.Param) { // not one that the line has made up
			lines[i].Field = *e.Param
		}
	}
	return lines
}

// problemText returns the message without what it quotes of the line.
func problemText(e batch.LineError) string {
	text := withoutQuotes(e.Message)
	if text == "" || e.Param != nil && strings.HasPrefix(text, *e.Param) { // a field's name stays as it is
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// withoutQuotes removes what a message of the validation quotes of a line: all between its first quotation mark and its last
// one, or the last ellipsis, which ends a quotation that was cut. Words at the end that the gateway expects or proposes stay.
func withoutQuotes(message string) string {
	first := strings.IndexByte(message, '"')
	if first < 0 {
		return message
	}
	end := message[max(strings.LastIndexByte(message, '"')+1, strings.LastIndex(message, "…")+len("…")):]
	if at := apierr.OwnWords(message); at >= 0 {
		if at < first {
			return message
		}
		end = message[at:]
	}
	return message[:first] + "“…”" + end
}
