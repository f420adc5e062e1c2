package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/tidwall/gjson"
)

var (
	errNoCount  = errors.New("the answer of /tokenize has no count")
	errNoTokens = errors.New("the answer of /tokenize has no tokens")
	errNoText   = errors.New("the answer of /detokenize has no text")

	// ErrUnknownToken is of ids that the model has no token for.
	ErrUnknownToken = errors.New("the model has no such token")
)

// CountTokens asks the backend how many tokens a text of the model has; a prompt has the tokenizer's special ones besides.
// The path asks for no key in any version.
func (b *Backend) CountTokens(ctx context.Context, text string, special bool) (int64, error) {
	answer, err := b.question(ctx, "/tokenize", tokenizeQuestion{b.checkpoint, text, special})
	if err != nil {
		return 0, err
	}
	count := answer.Get("count")
	if count.Type != gjson.Number {
		return 0, errNoCount
	}
	return count.Int(), nil
}

type tokenizeQuestion struct {
	Model   string `json:"model"`
	Prompt  string `json:"prompt"`
	Special bool   `json:"add_special_tokens"`
}

// TokenIDs asks for the ids of a prompt's tokens, the special ones included.
func (b *Backend) TokenIDs(ctx context.Context, prompt string) ([]int64, error) {
	answer, err := b.question(ctx, "/tokenize", tokenizeQuestion{b.checkpoint, prompt, true})
	if err != nil {
		return nil, err
	}
	tokens := answer.Get("tokens")
	if !tokens.IsArray() {
		return nil, errNoTokens
	}
	ids := make([]int64, 0, int(answer.Get("count").Int()))
	for _, id := range tokens.Array() {
		ids = append(ids, id.Int())
	}
	if int64(len(ids)) != answer.Get("count").Int() {
		return nil, errNoTokens // the answer was cut: it is too long
	}
	return ids, nil
}

// Detokenize asks for the text of tokens. What is no whole character comes as U+FFFD.
func (b *Backend) Detokenize(ctx context.Context, ids []int64) (string, error) {
	answer, err := b.question(ctx, "/detokenize", struct {
		Model  string  `json:"model"`
		Tokens []int64 `json:"tokens"`
	}{b.checkpoint, ids})
	if err != nil {
		return "", err
	}
	text := answer.Get("prompt")
	if text.Type != gjson.String {
		return "", errNoText
	}
	return text.Str, nil
}

// question puts a question in JSON, and takes the answer of status 200.
func (b *Backend) question(ctx context.Context, path string, question any) (gjson.Result, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return gjson.Result{}, fmt.Errorf("ask %s: %w", path, err)
	}
	answer, err := b.ask(ctx, http.MethodPost, path, bytes.NewReader(body))
	if err != nil {
		return gjson.Result{}, err
	}
	if path == "/detokenize" && answer.Status == http.StatusBadRequest {
		return gjson.Result{}, ErrUnknownToken
	}
	if answer.Status != http.StatusOK {
		return gjson.Result{}, fmt.Errorf("%s answered %d", path, answer.Status)
	}
	return gjson.ParseBytes(answer.Body), nil
}

// QueryReady puts a question to one ready backend after the other until one answers. The error is the last one's, or
// ErrNoOther where none is ready.
func (m *Model) QueryReady(ask func(*Backend) error) error {
	err := ErrNoOtherBackend
	for _, b := range m.Backends() {
		if state, _ := b.State(); state != Ready {
			continue
		}
		if err = ask(b); err == nil || errors.Is(err, ErrUnknownToken) {
			return err
		}
	}
	return err
}
