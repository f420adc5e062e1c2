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
)

const (
	// maxResponse limits a response, in bytes.
	maxResponse = 64 << 20
	// responseTimeout limits a request from its begin to the end of its response.
	responseTimeout = 10 * time.Minute
)

var (
	errTooLarge = errors.New("the response is larger than 64 MiB")
	errAnswer   = errors.New("unexpected answer")
)

// client sends requests to backends and to the gateway.
type client struct{ http http.Client }

// complete sends a completion request and reads the whole response, whatever its status.
func (c *client) complete(ctx context.Context, to Endpoint, body string) (observation, error) {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	return c.do(ctx, to, http.MethodPost, "/v1/completions", body)
}

func (c *client) do(ctx context.Context, to Endpoint, method, path, body string) (observation, error) {
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
	text, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1)) //nolint:forbidigo // bounded
	if err != nil {
		return observation{}, fmt.Errorf("read %s: %w", path, err)
	}
	if len(text) > maxResponse {
		return observation{}, fmt.Errorf("read %s: %w", path, errTooLarge)
	}
	return observation{response.StatusCode, response.Header.Get("Content-Type"), string(text)}, nil
}

// inspectTimeout limits each request to a server about itself.
const inspectTimeout = 30 * time.Second

// inspect returns what a backend reports about itself, or an error if it does not serve the checkpoint.
func (c *client) inspect(ctx context.Context, b Endpoint, checkpoint string) (Backend, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	models, err := c.do(ctx, b, http.MethodGet, "/v1/models", "")
	if err != nil {
		return Backend{}, fmt.Errorf("%s does not answer", b.Name) //nolint:err113 // the cause has the address
	}
	var info Backend
	served := false
	for _, m := range gjson.Get(models.body, "data").Array() {
		if m.Get("id").Str == checkpoint {
			info.MaxModelLen, served = m.Get("max_model_len").Int(), true
		}
	}
	if !served {
		return info, fmt.Errorf("%w of %s to /v1/models: status %d, and %s is not listed", errAnswer, b.Name, models.status, checkpoint)
	}
	if version, err := c.do(ctx, b, http.MethodGet, "/version", ""); err == nil {
		info.Version = gjson.Get(version.body, "version").Str
	}
	return info, nil
}

// checkServed returns an error unless the gateway lists the model to the key.
func (c *client) checkServed(ctx context.Context, gateway Endpoint, model string) error {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	o, err := c.do(ctx, gateway, http.MethodGet, "/v1/models/"+model, "")
	if err != nil {
		return err
	}
	if o.status != http.StatusOK {
		return fmt.Errorf("%w to /v1/models/%s: %d %s", errAnswer, model, o.status, o.errorObject().Get("code").Str)
	}
	return nil
}

// fallbackIDs stand for a text if the backend has no /tokenize. Every vocabulary has them.
var fallbackIDs = []int64{40, 41, 42, 43}

// tokenize returns the token ids of a text.
func (c *client) tokenize(ctx context.Context, b Endpoint, checkpoint, text string) []int64 {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	body := fmt.Sprintf(`{"model": %s, "prompt": %s, "add_special_tokens": false}`, encode(checkpoint), encode(text))
	o, err := c.do(ctx, b, http.MethodPost, "/tokenize", body)
	if err != nil || o.status != http.StatusOK {
		return fallbackIDs
	}
	var ids []int64
	if err := json.Unmarshal([]byte(gjson.Get(o.body, "tokens").Raw), &ids); err != nil || len(ids) < 2 {
		return fallbackIDs
	}
	return ids
}
