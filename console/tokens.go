package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"basegate/budget"
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

// allowTokenizer returns an error if the budget of the account is used up, and what it may send to the tokenizer beyond it. A
// body of unknown length counts as the largest.
func (c *Console) allowTokenizer(r *request) error {
	size := r.Request().ContentLength
	if size < 0 {
		size = maxTokenizerBody
	}
	return c.Completer.AllowFreeText(budget.Payer{Account: r.account.ID, AccountCaps: r.account.Caps}, size)
}

// tokenize responds with the token ids of a prompt, as a completion would see them: with the special tokens. A fragment
// continues other tokens, so it has none.
func (c *Console) tokenize(r *request) error {
	var input struct {
		Model    string `json:"model"`
		Prompt   string `json:"prompt"`
		Fragment bool   `json:"fragment"`
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
		ids, err = b.TokenIDs(ctx, input.Prompt, !input.Fragment)
		return err
	})
	return r.sendResult(http.StatusOK, map[string]any{"tokens": ids}, err)
}

// detokenize responds with the text of all tokens together and with the text of each. Several tokens can make one
// character: then it also responds with the text of these together.
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
	var characters []character
	err = queryBackend(r.ctx(), m, func(ctx context.Context, b *fleet.Backend) (err error) {
		if text, err = b.Detokenize(ctx, input.Tokens); err != nil {
			return err
		}
		if pieces, err = c.tokenTexts.lookUp(ctx, b, m.Checkpoint(), input.Tokens); err != nil {
			return err
		}
		characters, err = c.tokenTexts.characters(ctx, b, m.Checkpoint(), input.Tokens, pieces)
		return err
	})
	return r.sendResult(http.StatusOK, map[string]any{"text": text, "pieces": pieces, "characters": characters}, err)
}

var errUnknownToken = invalid("One of these ids is no token of the model.")

// servableModel returns a model that can serve requests. Otherwise it starts the model, as a completion would, and
// returns an error that says how long the boot takes.
func (c *Console) servableModel(id string) (*fleet.Model, error) {
	m, ok := c.Fleet.Model(id)
	if !ok {
		return nil, apierr.UnknownModel("model", id, nil, "")
	}
	if err := m.EnsureServable(fleet.Caller{}); err != nil {
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

// tokenKey is a token, or several that make one character.
type tokenKey struct {
	checkpoint string
	ids        [maxCharacterTokens]int64 // those after the last one are -1
}

func newTokenKey(checkpoint string, ids ...int64) tokenKey {
	key := tokenKey{checkpoint: checkpoint}
	for i := range key.ids {
		key.ids[i] = -1
	}
	copy(key.ids[:], ids)
	return key
}

const (
	// maxCharacterTokens limits the tokens that are taken together as one character. A character has up to 4 bytes.
	maxCharacterTokens = 4
	// partOfCharacter is in the text of a token that is only a part of a character.
	partOfCharacter = "\uFFFD"
)

// character is the text of several tokens that are parts of characters.
type character struct {
	At     int    `json:"at"`     // index of the first token
	Tokens int    `json:"tokens"` // how many
	Text   string `json:"text"`
}

// characters returns the texts of the tokens that are parts of characters, taken together: each as few as make whole
// characters. Tokens that do not make one are left out.
func (t *tokenTexts) characters(
	ctx context.Context, b *fleet.Backend, checkpoint string, ids []int64, pieces []string,
) ([]character, error) {
	all := []character{}
	for at := 0; at < len(ids); at++ {
		end := at // of the parts
		for end < min(len(ids), at+maxCharacterTokens) && strings.Contains(pieces[end], partOfCharacter) {
			end++
		}
		for n := 2; n <= end-at; n++ {
			text, err := t.text(ctx, b, checkpoint, ids[at:at+n]...)
			if err != nil {
				return nil, err
			}
			if !strings.Contains(text, partOfCharacter) {
				all = append(all, character{At: at, Tokens: n, Text: text})
				at += n - 1
				break
			}
		}
	}
	return all, nil
}

// text returns the text of tokens together. It requests a text that is not cached from the backend. A cache that is full is
// emptied first.
func (t *tokenTexts) text(ctx context.Context, b *fleet.Backend, checkpoint string, ids ...int64) (string, error) {
	key := newTokenKey(checkpoint, ids...)
	t.mu.Lock()
	text, ok := t.texts[key]
	t.mu.Unlock()
	if ok {
		return text, nil
	}
	text, err := b.Detokenize(ctx, ids)
	if err != nil {
		return "", fmt.Errorf("read text of tokens: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.texts == nil || len(t.texts) >= maxCachedTexts {
		t.texts = map[tokenKey]string{}
	}
	t.texts[key] = text
	return text, nil
}

func (t *tokenTexts) lookUp(ctx context.Context, b *fleet.Backend, checkpoint string, ids []int64) ([]string, error) {
	indexes := map[int64][]int{} // by token id
	for i, id := range ids {
		indexes[id] = append(indexes[id], i)
	}
	texts := make([]string, len(ids))
	requests, ctx := errgroup.WithContext(ctx)
	requests.SetLimit(maxParallelTexts)
	for id, at := range indexes {
		requests.Go(func() error {
			text, err := t.text(ctx, b, checkpoint, id)
			for _, i := range at {
				texts[i] = text
			}
			return err
		})
	}
	return texts, requests.Wait()
}
