// Package eternalai translates EternalAI's completions: those of OpenAI within bounds of their own, with the id of a
// blockchain, which is recorded, and with the receipt of the answer in place of what a chain would prove.
//
// It has the field table of the form. Everything else about a request is left to package proxy.
package eternalai

import (
	"fmt"
	"strings"

	"github.com/tidwall/gjson"

	"basegate/proxy"
	"basegate/validate"
)

const (
	prefix = "/eternalai"
	path   = prefix + "/v1/completions"
)

// Dialect serves EternalAI's completions below /eternalai.
var Dialect = &proxy.Dialect{
	Prefix:    prefix,
	Served:    "of the EternalAI API, POST " + path + " is served; GET /v1/models lists the models",
	Endpoints: map[string]func([]byte, validate.Limits) (proxy.Translation, error){path: parse},
}

// sameFields are the fields that are those of a completion.
var sameFields = []string{
	"echo", "frequency_penalty", "logit_bias", "max_tokens", "n", "best_of", "presence_penalty", "seed", "stop", "stream",
	"stream_options", "temperature", "top_p", "user",
}

var form = newForm()

func newForm() *validate.Form {
	rows := []validate.FormField{
		{Name: "model", Field: "model", Required: true},
		{Name: "prompt", Field: "prompt", Required: true},
		{
			Name: "chain_id", Expected: "a string of 1 to 78 digits, or an integer of at least 0", Read: validate.Value(checkChainID),
		},
		{ // a field that clients may send as null, which is its default
			Name: "suffix", Expected: "null, since no model here completes a text before a suffix", Read: validate.Value(validate.Describe),
		},
		{
			Name: "logprobs", Field: "logprobs", Expected: "an integer from 0 to 5, or to the model's limit if that is lower",
			Read: validate.Integer(0, 5, func(r *validate.Request, v int64) { r.Logprobs = int(v) }),
		},
	}
	for _, name := range sameFields {
		rows = append(rows, validate.FormField{Name: name, Field: name})
	}
	return validate.NewForm(`{"model": …, "prompt": …}`, rows, conflict, map[string]string{})
}

func conflict(r *validate.Request) (param, message string) {
	if r.BestOf == 0 || !r.Has("n") || r.BestOf > r.N {
		return "", ""
	}
	return "best_of", fmt.Sprintf("best_of is %d and n is %d: of the two together, best_of must be greater than n", r.BestOf, r.N)
}

// maxChainID is the length of the largest id that Ethereum's 256 bits hold.
const maxChainID = 78

// checkChainID returns what is wrong with a chain_id.
func checkChainID(value []byte) string {
	digits := chainID(value)
	if digits == "" || len(digits) > maxChainID || strings.Trim(digits, "0123456789") != "" {
		return validate.Describe(value)
	}
	return ""
}

// chainID returns the digits of a valid chain_id; "" for null, and for a value that is neither string nor number.
func chainID(value []byte) string {
	switch v := gjson.ParseBytes(value); v.Type {
	case gjson.String:
		return v.Str
	case gjson.Number:
		return v.Raw
	default:
		return ""
	}
}

func parse(body []byte, limits validate.Limits) (proxy.Translation, error) {
	r, err := form.Parse(body, limits)
	t := proxy.Translation{Request: r, Receipt: true}
	if err == nil {
		t.ChainID = chainID(r.Value("chain_id"))
	}
	return t, err
}
