package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	"basegate/breaker"
)

var (
	errNoCount  = errors.New("the response of /tokenize has no count")
	errNoTokens = errors.New("the response of /tokenize does not have all tokens")
	errNoText   = errors.New("the response of /detokenize has no text")

	// ErrNoTokenizer is returned for a text to count if no ready backend of the model has /tokenize.
	ErrNoTokenizer = errors.New("the backend has no /tokenize")

	// ErrNoTemplate is returned for messages to count if the backend's model has no chat template.
	ErrNoTemplate = errors.New("the backend has no chat template")

	// ErrUnknownToken is returned for a token id that the model does not have.
	ErrUnknownToken = errors.New("the model has no such token")
)

// RefusedError is returned for messages to count if the backend refuses them as the client's mistake, as a template does that
// wants the roles to alternate.
type RefusedError struct{ Outcome breaker.Outcome }

// Error quotes nothing of the response, which may quote the messages.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the backend refuses the messages with status %d", e.Outcome.Status)
}

// tokenizeRequest is the body of a request to /tokenize. The endpoint requires no API key in any version.
type tokenizeRequest struct {
	Model   string `json:"model"`
	Prompt  string `json:"prompt"`
	Special bool   `json:"add_special_tokens"`
}

// CountTokens returns the number of tokens of a text. special includes the special tokens that the tokenizer adds to a
// prompt. The error is ErrNoTokenizer if the backend does not have the endpoint.
func (b *Backend) CountTokens(ctx context.Context, text string, special bool) (int64, error) {
	return countOf(b.postJSON(ctx, "/tokenize", tokenizeRequest{b.checkpoint, text, special}, maxResponseBody))
}

func countOf(response gjson.Result, err error) (int64, error) {
	count := response.Get("count")
	if err == nil && count.Type != gjson.Number {
		err = errNoCount
	}
	return count.Int(), err
}

// idBytes is more than a token of one byte takes in a response of /tokenize, in bytes.
const idBytes = 12

// TokenIDs returns the ids of a text's tokens. special includes the special tokens that the tokenizer adds to a prompt.
func (b *Backend) TokenIDs(ctx context.Context, text string, special bool) ([]int64, error) {
	request := tokenizeRequest{b.checkpoint, text, special}
	response, err := b.postJSON(ctx, "/tokenize", request, maxResponseBody+idBytes*int64(len(text)))
	if err != nil {
		return nil, err
	}
	tokens := response.Get("tokens")
	if !tokens.IsArray() {
		return nil, errNoTokens
	}
	ids := make([]int64, 0, int(response.Get("count").Int()))
	for _, id := range tokens.Array() {
		ids = append(ids, id.Int())
	}
	if int64(len(ids)) != response.Get("count").Int() {
		return nil, errNoTokens // the response was cut
	}
	return ids, nil
}

// Detokenize returns the text of tokens. Bytes that are not a complete character become U+FFFD.
func (b *Backend) Detokenize(ctx context.Context, ids []int64) (string, error) {
	response, err := b.postJSON(ctx, "/detokenize", struct {
		Model  string  `json:"model"`
		Tokens []int64 `json:"tokens"`
	}{b.checkpoint, ids}, maxResponseBody)
	if err != nil {
		return "", err
	}
	text := response.Get("prompt")
	if text.Type != gjson.String {
		return "", errNoText
	}
	return text.Str, nil
}

// postJSON sends a request as JSON and returns the body, cut at most bytes, of a response with status 200.
func (b *Backend) postJSON(ctx context.Context, path string, request any, most int64) (gjson.Result, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return gjson.Result{}, fmt.Errorf("request %s: %w", path, err)
	}
	return b.postBody(ctx, path, body, most)
}

// noTemplate matches vLLM's error about messages to a model without a chat template: that of every version, with status 400, and
// that of its Rust frontend, with 500.
var noTemplate = regexp.MustCompile("must provide a chat template|chat template is required but none was configured")

// postBody is postJSON for a body that is JSON already.
func (b *Backend) postBody(ctx context.Context, path string, body []byte, most int64) (gjson.Result, error) {
	response, err := b.do(ctx, http.MethodPost, b.URL(path), bytes.NewReader(body), most)
	if err != nil {
		return gjson.Result{}, err
	}
	switch status := response.Status; {
	case status == http.StatusOK:
		return gjson.ParseBytes(response.Body), nil
	case path == "/detokenize" && status == http.StatusBadRequest:
		return gjson.Result{}, ErrUnknownToken
	case path == "/tokenize" && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed):
		return gjson.Result{}, fmt.Errorf("%w: it answered %d", ErrNoTokenizer, status)
	case noTemplate.Match(response.Body):
		return gjson.Result{}, ErrNoTemplate
	}
	if o := breaker.Classify(response.Status, response.Body); path == "/tokenize" && o.Class == breaker.ClientError {
		return gjson.Result{}, &RefusedError{o}
	}
	return gjson.Result{}, fmt.Errorf("%s answered %d", path, response.Status)
}

// ErrNoTokenizerInfo is returned by a backend that does not serve /tokenizer_info.
var ErrNoTokenizerInfo = errors.New("the backend has no /tokenizer_info, which vLLM has with --enable-tokenizer-info-endpoint")

// TokenizerInfo returns the configuration of the backend's tokenizer. It may hold paths of the operator's.
func (b *Backend) TokenizerInfo(ctx context.Context) (gjson.Result, error) {
	response, err := b.do(ctx, http.MethodGet, b.URL("/tokenizer_info"), nil, maxTokenizerInfo)
	switch {
	case err != nil:
		return gjson.Result{}, err
	case response.Status == http.StatusNotFound || response.Status == http.StatusMethodNotAllowed:
		return gjson.Result{}, ErrNoTokenizerInfo
	case response.Status != http.StatusOK:
		return gjson.Result{}, fmt.Errorf("/tokenizer_info answered %d", response.Status)
	}
	info := gjson.ParseBytes(response.Body)
	if !info.IsObject() || !jsontext.Value(response.Body).IsValid() {
		return gjson.Result{}, errNoInfo
	}
	return info, nil
}

// maxTokenizerInfo limits a tokenizer's configuration, which lists thousands of added tokens of some models, in bytes.
const maxTokenizerInfo = 16 << 20

var (
	errNoInfo = errors.New("the response of /tokenizer_info is not an object")

	// ErrNoFirstToken is returned if a model has no special token to begin with, or the backend does not tell it.
	ErrNoFirstToken = errors.New("the model's first special token is not known")
)

// FirstToken returns the id of the token with which a text begins that has nothing before it: that of the beginning, or else that
// of the end of a text. Without /tokenizer_info, only a token that the tokenizer itself begins a prompt with is known.
func (b *Backend) FirstToken(ctx context.Context) (int64, error) {
	if known := b.firstToken.Load(); known != nil {
		return *known, nil
	}
	first, err := b.readFirstToken(ctx)
	if err == nil {
		b.firstToken.Store(&first)
	}
	return first, err
}

func (b *Backend) readFirstToken(ctx context.Context) (int64, error) {
	info, err := b.TokenizerInfo(ctx)
	if err != nil && !errors.Is(err, ErrNoTokenizerInfo) {
		return 0, err
	}
	for _, name := range []string{"bos_token", "eos_token"} {
		token := info.Get(name)
		if token.IsObject() {
			token = token.Get("content")
		}
		if token.Str == "" {
			continue
		}
		switch ids, err := b.TokenIDs(ctx, token.Str, false); {
		case err != nil:
			return 0, err
		case len(ids) == 1:
			return ids[0], nil
		}
	}
	const text = "a"
	with, err := b.TokenIDs(ctx, text, true)
	if err != nil {
		return 0, err
	}
	without, err := b.TokenIDs(ctx, text, false)
	switch {
	case err != nil:
		return 0, err
	case len(with) <= len(without) || len(without) > 0 && with[0] == without[0]:
		return 0, ErrNoFirstToken
	}
	return with[0], nil
}

// QueryReady calls query with one ready backend after another until a call succeeds or returns ErrUnknownToken. It
// returns the last error, but ErrNoTokenizer only if every call returned it, and ErrNoOtherBackend if no backend is ready.
func (m *Model) QueryReady(query func(*Backend) error) error {
	last := ErrNoOtherBackend
	for _, b := range m.Backends() {
		if !b.is(Ready) {
			continue
		}
		err := query(b)
		if err == nil || errors.Is(err, ErrUnknownToken) {
			return err
		}
		if errors.Is(last, ErrNoOtherBackend) || !errors.Is(err, ErrNoTokenizer) {
			last = err
		}
	}
	return last
}
