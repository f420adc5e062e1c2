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
	// maxQuestion is the longest text or list of ids that is asked about, in bytes.
	maxQuestion = 16 << 20
	// maxTokens is how many tokens are asked about at once.
	maxTokens = 1 << 18
	// maxTexts is how many texts of tokens are kept for all models together; a model's vocabulary is 128,000 or so.
	maxTexts = 1 << 20
	// textsAtOnce is how many questions a backend gets at a time.
	textsAtOnce = 8
	// tokensTimeout bounds all the questions for one answer.
	tokensTimeout = 30 * time.Second
)

// tokenize tells the tokens of a prompt, the special ones included, as a completion has them.
func (c *Console) tokenize(r *request) error {
	var q struct {
		Model  string `json:"model"`
		Prompt string `json:"prompt"`
	}
	if err := r.readJSON(&q); err != nil {
		return err
	}
	m, err := c.awake(q.Model)
	if err != nil {
		return err
	}
	var ids []int64
	err = asked(r.ctx(), m, func(ctx context.Context, b *fleet.Backend) (err error) {
		ids, err = b.Tokens(ctx, q.Prompt)
		return err
	})
	if err != nil {
		return err
	}
	return r.sendJSON(http.StatusOK, map[string]any{"tokens": ids})
}

// detokenize tells the text of tokens, of all together and of each: several can make one character.
func (c *Console) detokenize(r *request) error {
	var q struct {
		Model  string  `json:"model"`
		Tokens []int64 `json:"tokens"`
	}
	if err := r.readJSON(&q); err != nil {
		return err
	}
	if len(q.Tokens) > maxTokens {
		return invalid("These are too many tokens at once: up to " + number(maxTokens) + " are taken.")
	}
	if slices.ContainsFunc(q.Tokens, func(id int64) bool { return id < 0 }) {
		return errNoToken
	}
	m, err := c.awake(q.Model)
	if err != nil {
		return err
	}
	var text string
	var pieces []string
	err = asked(r.ctx(), m, func(ctx context.Context, b *fleet.Backend) (err error) {
		if text, err = b.Text(ctx, q.Tokens); err != nil {
			return err
		}
		pieces, err = c.tokenTexts.of(ctx, b, m.Checkpoint(), q.Tokens)
		return err
	})
	if err != nil {
		return err
	}
	return r.sendJSON(http.StatusOK, map[string]any{"text": text, "pieces": pieces})
}

var errNoToken = invalid("One of these ids is no token of the model.")

// awake finds a model that answers. One that does not is started, as by a completion, and the error says how long that
// takes.
func (c *Console) awake(id string) (*fleet.Model, error) {
	m, ok := c.fleet.Model(id)
	if !ok {
		return nil, apierr.UnknownModel(id, nil, "")
	}
	if err := m.Servable(); err != nil {
		return nil, m.Refusal(err)
	}
	return m, nil
}

func asked(ctx context.Context, m *fleet.Model, ask func(context.Context, *fleet.Backend) error) error {
	ctx, cancel := context.WithTimeout(ctx, tokensTimeout)
	defer cancel()
	err := m.AskReady(func(b *fleet.Backend) error { return ask(ctx, b) })
	if errors.Is(err, fleet.ErrNoToken) {
		return errNoToken
	}
	if err != nil {
		return apierr.Unreachable("the tokenizer of "+m.ID()+" does not answer", 1, err)
	}
	return nil
}

// tokenTexts remembers the texts of tokens, which do not change as long as a checkpoint has its name.
type tokenTexts struct {
	mu    sync.Mutex
	known map[tokenOf]string
}

type tokenOf struct {
	checkpoint string
	id         int64
}

// of asks the backend for the texts that are not known yet.
func (t *tokenTexts) of(ctx context.Context, b *fleet.Backend, checkpoint string, ids []int64) ([]string, error) {
	texts := make([]string, len(ids))
	missing := map[int64][]int{}
	t.mu.Lock()
	for i, id := range ids {
		text, ok := t.known[tokenOf{checkpoint, id}]
		if !ok {
			missing[id] = append(missing[id], i)
		}
		texts[i] = text
	}
	t.mu.Unlock()
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(textsAtOnce)
	for id, places := range missing {
		asking.Go(func() error {
			text, err := b.Text(ctx, []int64{id})
			if err != nil {
				return err
			}
			for _, i := range places {
				texts[i] = text
			}
			t.keep(tokenOf{checkpoint, id}, text)
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, fmt.Errorf("read texts of tokens: %w", err)
	}
	return texts, nil
}

func (t *tokenTexts) keep(of tokenOf, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) >= maxTexts {
		t.known = map[tokenOf]string{}
	}
	t.known[of] = text
}
