package console

import (
	"cmp"
	"math"
	"net/http"

	"basegate/budget"
	"basegate/console/prompts"
	apierr "basegate/errors"
)

// Completer serves completions, chat completions, log-likelihoods and estimates on behalf of an account with one of its keys. It checks,
// queues, charges and logs a request as the path of the public API does.
type Completer interface {
	ServeOnBehalfOf(account, key, path string, w http.ResponseWriter, r *http.Request)
	// AllowFreeText returns an error of the API if a budget of the payer is used up, and what it may send to the tokenizer too.
	AllowFreeText(payer budget.Payer, bytes int64) error
}

// noLimit is for bodies that the API limits itself.
const noLimit = math.MaxInt64

// workbenchPage is the data of the workbench's page. Its scripts poll workbenchOptions for keys and models.
type workbenchPage struct {
	BaseURL string // of the public API
	Prompt  string // id of the saved prompt to open; may be empty
	Shared  string // id of the link by which another user's prompt is opened; may be empty
	Shades  []int  // CSS classes of the legend

	MaxBytes    int // of a saved prompt
	MaxVersions int // of a saved prompt, the latest included

	ErrorWords map[apierr.Code]errorWords
}

func (c *Console) workbench(r *request) error {
	return c.render(r, "workbench", "Workbench", workbenchPage{
		BaseURL: c.settings.Load().PublicURL.String(), Prompt: r.query("prompt"), Shared: r.query("shared"),
		Shades: []int{0, 1, 2, 3, 4, 5, 6, 7, 8}, MaxBytes: maxPrompt, MaxVersions: prompts.MaxVersions, ErrorWords: errorTable,
	})
}

type workbenchOptions struct {
	Keys   []keyOption   `json:"keys"`
	Models []modelOption `json:"models"`
}

type keyOption struct {
	ID     string     `json:"id"`
	Name   string     `json:"name"`
	Prefix string     `json:"prefix"`
	Models []string   `json:"models"` // null: all
	Budget *remaining `json:"budget"` // the tightest cap of the key and its account; null if there is none

	Concurrency int `json:"concurrency"` // requests at once
}

type modelOption struct {
	ID          string `json:"id"`
	Status      string `json:"status"` // as in GET /v1/models
	MaxModelLen int64  `json:"max_model_len"`
	MaxLogprobs int    `json:"max_logprobs"`
	State       string `json:"state"`       // what the status means, as a predicate
	Completions bool   `json:"completions"` // the model serves completions
	Chat        bool   `json:"chat"`        // the model serves chat completions

	FirstTokenSeconds float64 `json:"first_token_seconds"` // the median of the last 60 minutes, of streams; 0 if there were none
	TokensPerSecond   float64 `json:"tokens_per_second"`   // likewise, of decoding
}

// workbenchOptions lists the keys with which the user may send requests, and all models.
func (c *Console) workbenchOptions(r *request) error {
	keys, err := c.Keys.Usable(r.ctx(), r.account.ID)
	if err != nil {
		return err
	}
	options := workbenchOptions{Keys: []keyOption{}, Models: []modelOption{}}
	for _, k := range keys {
		payer := budget.Payer{Key: k.ID, KeyCaps: k.Caps, Account: k.AccountID, AccountCaps: r.account.Caps}
		balance, _ := c.Ledger.ReadBalance(r.ctx(), payer) // without the database, what is known
		options.Keys = append(options.Keys, keyOption{
			k.ID, k.Name, k.Prefix, k.Models.IDs(), tightest(balance.Caps()), cmp.Or(k.Concurrency, c.Keys.MaxConcurrency(r.account)),
		})
	}
	activity := c.modelActivity()
	for _, m := range c.Fleet.Models() {
		a := activity[m.ID()]
		options.Models = append(options.Models, modelOption{
			m.ID(), m.Status(), m.MaxModelLen(), m.MaxLogprobs(), newModelRow(m).Meaning, m.Completions(), m.Chat(),
			a.FirstToken.Seconds(), a.TokensPerSecond,
		})
	}
	return r.sendJSON(http.StatusOK, options)
}

// onBehalf returns the handler of what a path of the API serves, with one of the user's keys. The Completer checks that the
// key is the user's.
func onBehalf(path string) handler {
	return func(c *Console, r *request) error {
		c.Completer.ServeOnBehalfOf(r.account.ID, r.query("key"), path, r.Response(), r.Request())
		return nil
	}
}
