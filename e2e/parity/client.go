package parity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/wait"
)

// Limits of a response, and of a request from its begin to the end of its response.
const (
	maxResponse     = 64 << 20
	responseTimeout = 10 * time.Minute
	inspectTimeout  = 30 * time.Second // of a question to a server about itself
)

var (
	errTooLarge = errors.New("the response is larger than 64 MiB")
	errAnswer   = errors.New("unexpected answer")

	errKeyNotAccepted = errors.New("the gateway does not accept the temporary key; does it run on this configuration's database?")
)

type client struct{ http http.Client }

// do sends a request and reads the whole response, whatever its status.
func (c *client) do(ctx context.Context, to Endpoint, method, path, body string) (observation, error) {
	limit := inspectTimeout
	if path == "/v1/completions" {
		limit = responseTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, to.URL+path, strings.NewReader(body))
	if err != nil {
		return observation{}, fmt.Errorf("request %s: %w", path, err)
	}
	request.Header.Set("Content-Type", "application/json")
	if to.Key != "" {
		request.Header.Set("Authorization", "Bearer "+to.Key)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return observation{}, fmt.Errorf("request %s: %w", path, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err == nil && len(text) > maxResponse {
		err = errTooLarge
	}
	if err != nil {
		return observation{}, fmt.Errorf("read %s: %w", path, err)
	}
	return observe(response.StatusCode, response.Header.Get("Content-Type"), string(text)), nil
}

// inspect returns what a backend reports about itself, or an error if it does not serve the checkpoint.
func (c *client) inspect(ctx context.Context, b Endpoint, checkpoint string) (Backend, error) {
	info := Backend{Name: b.Name}
	models, err := c.do(ctx, b, http.MethodGet, "/v1/models", "")
	if err != nil {
		return info, fmt.Errorf("%s does not answer", b.Name)
	}
	served := gjson.Get(models.parts[0], "data.#(id=="+encode(checkpoint)+")")
	if !served.Exists() {
		return info, fmt.Errorf("%w of %s to /v1/models: status %d, and %s is not listed", errAnswer, b.Name, models.status, checkpoint)
	}
	info.MaxModelLen = served.Get("max_model_len").Int()
	if version, err := c.do(ctx, b, http.MethodGet, "/version", ""); err == nil {
		info.Version = gjson.Get(version.parts[0], "version").Str
	}
	return info, nil
}

// keyPause is the time between two questions whether the gateway knows a new key.
const keyPause = 50 * time.Millisecond

// checkServed returns an error unless the gateway lists the model to the key. It waits until the key is accepted.
func (c *client) checkServed(ctx context.Context, gateway Endpoint, model string, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; {
		o, err := c.do(ctx, gateway, http.MethodGet, "/v1/models/"+model, "")
		switch {
		case err != nil:
			return err
		case o.status == http.StatusOK:
			return nil
		case patience > 0 && o.status == http.StatusUnauthorized && time.Now().After(deadline):
			return errKeyNotAccepted
		case patience == 0 || o.status != http.StatusUnauthorized:
			return fmt.Errorf("%w to /v1/models/%s: %d %s", errAnswer, model, o.status, o.errorObject().Get("code").Str)
		}
		if !wait.For(ctx, keyPause) {
			return context.Cause(ctx)
		}
	}
}

// fallbackIDs stand for a text if the backend has no /tokenize. Every vocabulary has them.
var fallbackIDs = []int64{40, 41, 42, 43}

func (c *client) tokenize(ctx context.Context, b Endpoint, checkpoint, text string) []int64 {
	body := fmt.Sprintf(`{"model": %s, "prompt": %s, "add_special_tokens": false}`, encode(checkpoint), encode(text))
	o, err := c.do(ctx, b, http.MethodPost, "/tokenize", body)
	if err != nil || o.status != http.StatusOK {
		return fallbackIDs
	}
	var answer struct{ Tokens []int64 }
	if err := json.Unmarshal([]byte(o.parts[0]), &answer); err != nil || len(answer.Tokens) < 2 {
		return fallbackIDs
	}
	return answer.Tokens
}
