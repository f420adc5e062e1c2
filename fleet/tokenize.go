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

var errNoCount = errors.New("the answer of /tokenize has no count")

// Tokenize asks the backend how many tokens a text of the model has; a prompt has the tokenizer's special ones besides.
// The path asks for no key in any version.
func (b *Backend) Tokenize(ctx context.Context, text string, special bool) (int64, error) {
	question, err := json.Marshal(struct {
		Model   string `json:"model"`
		Prompt  string `json:"prompt"`
		Special bool   `json:"add_special_tokens"`
	}{b.checkpoint, text, special})
	if err != nil {
		return 0, fmt.Errorf("ask /tokenize: %w", err)
	}
	answer, err := b.ask(ctx, http.MethodPost, "/tokenize", bytes.NewReader(question))
	if err != nil {
		return 0, err
	}
	if answer.Status != http.StatusOK {
		return 0, fmt.Errorf("/tokenize answered %d", answer.Status)
	}
	count := gjson.GetBytes(answer.Body, "count")
	if count.Type != gjson.Number {
		return 0, errNoCount
	}
	return count.Int(), nil
}
