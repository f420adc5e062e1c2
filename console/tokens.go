package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	apierr "basegate/errors"
	"basegate/fleet"
)

const (
	// maxTokenizerBody limits a request to tokenize or detokenize, in bytes.
	maxTokenizerBody = 16 << 20
	// maxTokens limits the tokens of one request to detokenize.
	maxTokens = 1 << 18
	// maxCachedTexts limits the cached texts of all models together. A vocabulary has about 128,000 tokens.
	maxCachedTexts = 1 << 20
	// maxParallelTexts limits the concurrent requests for texts to a backend, for one request of a script.
	maxParallelTexts = 8
	// tokenizerTimeout limits all requests to backends for one request of a script.
	tokenizerTimeout = 30 * time.Second
)

// tokenize responds with the token ids of a prompt, as a completion would see them: with the special tokens.
func (c *Console) tokenize(r *request) error {
	var input struct {
		Model  string `json:"model"`
		Prompt string `json:"prompt"`
	}
	if err := r.readJSON(&input); err != nil {
		return err
	}
	m, err := c.servableModel(input.Model)
	if err != nil {
		return err
	}
	var ids []int64
	err = queryBackend(r.ctx(), m, func(ctx context.Context, b *fleet.Backend) (err error) {
		ids, err = b.TokenIDs(ctx, input.Prompt)
		return err
	})
	if err != nil {
		return err
	}
	return r.sendJSON(http.StatusOK, map[string]any{"tokens": ids})
}

// detokenize responds with the text of all tokens together and with the text of each, because several tokens can make
// one character.
func (c *Console) detokenize(r *request) error {
	var input struct {
		Model  string  `json:"model"`
		Tokens []int64 `json:"tokens"`
	}
	if err := r.readJSON(&input); err != nil {
		return err
	}
	if len(input.Tokens) > maxTokens {
		return invalid("These are too many tokens at once: up to " + formatNumber(maxTokens) + " are taken.")
	}
	if slices.ContainsFunc(input.Tokens, func(id int64) bool { return id < 0 }) {
		return errUnknownToken
	}
	m, err := c.servableModel(input.Model)
	if err != nil {
		return err
	}
	var text string
	var pieces []string
	err = queryBackend(r.ctx(), m, func(ctx context.Context, b *fleet.Backend) (err error) {
		if text, err = b.Detokenize(ctx, input.Tokens); err != nil {
			return err
		}
		pieces, err = c.tokenTexts.lookUp(ctx, b, m.Checkpoint(), input.Tokens)
		return err
	})
	if err != nil {
		return err
	}
	return r.sendJSON(http.StatusOK, map[string]any{"text": text, "pieces": pieces})
}

var errUnknownToken = invalid("One of these ids is no token of the model.")

// servableModel returns a model that can serve requests. Otherwise it starts the model, as a completion would, and
// returns an error that says how long the boot takes.
func (c *Console) servableModel(id string) (*fleet.Model, error) {
	m, ok := c.fleet.Model(id)
	if !ok {
		return nil, apierr.UnknownModel(id, nil, "")
	}
	if err := m.EnsureServable(nil); err != nil {
		return nil, m.APIError(err)
	}
	return m, nil
}

// queryBackend calls query with a backend of the model that is ready.
func queryBackend(ctx context.Context, m *fleet.Model, query func(context.Context, *fleet.Backend) error) error {
	ctx, cancel := context.WithTimeout(ctx, tokenizerTimeout)
	defer cancel()
	err := m.QueryReady(func(b *fleet.Backend) error { return query(ctx, b) })
	if errors.Is(err, fleet.ErrUnknownToken) {
		return errUnknownToken
	}
	if err != nil {
		return apierr.Unreachable("the tokenizer of "+m.ID()+" does not answer", 1, err)
	}
	return nil
}

// tokenTexts caches the texts of tokens, which do not change as long as a checkpoint keeps its name. The zero value is
// an empty cache.
type tokenTexts struct {
	mu    sync.Mutex
	texts map[tokenKey]string
}

type tokenKey struct {
	checkpoint string
	id         int64
}

// lookUp returns the texts of tokens. It requests those that are not cached from the backend.
func (t *tokenTexts) lookUp(ctx context.Context, b *fleet.Backend, checkpoint string, ids []int64) ([]string, error) {
	texts := make([]string, len(ids))
	missing := map[int64][]int{} // indexes by token id
	t.mu.Lock()
	for i, id := range ids {
		text, ok := t.texts[tokenKey{checkpoint, id}]
		if !ok {
			missing[id] = append(missing[id], i)
		}
		texts[i] = text
	}
	t.mu.Unlock()
	requests, ctx := errgroup.WithContext(ctx)
	requests.SetLimit(maxParallelTexts)
	for id, indexes := range missing {
		requests.Go(func() error {
			text, err := b.Detokenize(ctx, []int64{id})
			if err != nil {
				return err
			}
			for _, i := range indexes {
				texts[i] = text
			}
			t.put(tokenKey{checkpoint, id}, text)
			return nil
		})
	}
	if err := requests.Wait(); err != nil {
		return nil, fmt.Errorf("read texts of tokens: %w", err)
	}
	return texts, nil
}

// put adds a text. A cache that is full is emptied first.
func (t *tokenTexts) put(key tokenKey, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.texts == nil || len(t.texts) >= maxCachedTexts {
		t.texts = map[tokenKey]string{}
	}
	t.texts[key] = text
}
