// Package lamini translates the completions of the Lamini platform, versions 1 and 2, to completions and back: a prompt or
// a list of them, whose outputs are texts, or objects of the types that the request names.
//
// It has the field table of the form and the form of its responses and errors. Everything else about a request is left to
// package proxy.
package lamini

import (
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	apierr "basegate/errors"
	"basegate/proxy"
	"basegate/validate"
)

const (
	prefix = "/lamini"
	pathV1 = prefix + "/v1/completions"
	pathV2 = prefix + "/v2/completions"
)

// Dialect serves Lamini's completions below /lamini.
var Dialect = &proxy.Dialect{
	Prefix: prefix,
	Served: "of the Lamini API, POST " + pathV1 + " and POST " + pathV2 + " are served; GET /v1/models lists the models",
	Endpoints: map[string]func([]byte, validate.Limits) (proxy.Translation, error){
		pathV1: parser(false),
		pathV2: parser(true),
	},
	AppendError: appendError,
}

// form is the field table. max_tokens limits prompt and output together, so it is none of a completion's fields.
var form = validate.NewForm(`{"model_name": …, "prompt": …}`, []validate.FormField{
	{
		Name: "model_name", Field: "model", Required: true,
	},
	{
		Name: "prompt", Field: "prompt", Required: true,
		Expected: "a string or an array of strings, not empty", Read: validate.TextPrompts,
	},
	{
		Name: "output_type", Expected: `an object of names, each with "str", "int", "float" or "bool"`,
		Read: validate.Value(func(value []byte) string {
			_, wrong := parseTypes(value)
			return wrong
		}),
	},
	{
		Name: "max_new_tokens", Field: "max_tokens",
	},
	{
		Name: "max_tokens", Expected: "an integer of at least 1, for prompt and output together",
		Read: validate.Integer(1, math.MaxInt64, nil),
	},
}, nil, adviceOnFields)

// adviceOnFields are fields that users of other forms, or of other endpoints of Lamini, may send.
var adviceOnFields = map[string]string{
	"model":    "the field is called model_name here",
	"prompts":  "the field is called prompt here, also for a list",
	"cache_id": "there is no cache to name; remove it",
	"n":        "this form does not have it; send the prompt several times in a list",
	"stream":   "responses in this form are not streamed; POST /v1/completions streams",
}

// parser returns what parses the bodies of version 2, whose responses have finish reasons, or of version 1.
func parser(reasons bool) func([]byte, validate.Limits) (proxy.Translation, error) {
	return func(body []byte, limits validate.Limits) (proxy.Translation, error) {
		return parse(body, limits, reasons)
	}
}

func parse(body []byte, limits validate.Limits, reasons bool) (proxy.Translation, error) {
	r, err := form.Parse(body, limits)
	t := proxy.Translation{Request: r}
	if err != nil {
		return t, err
	}
	if !r.Has("max_new_tokens") {
		total, _ := strconv.ParseInt(string(r.Value("max_tokens")), 10, 64) // 0 if absent, and otherwise valid
		r.LimitTotal(total)
	}
	a := &answer{prompts: r.Prompts, isList: r.Value("prompt")[0] == '[', reasons: reasons}
	if value := r.Value("output_type"); value != nil {
		a.types, _ = parseTypes(value) // the form has accepted it
		r.Constrain(a.types.schema())
	}
	t.Respond = a.translate
	if reasons {
		t.TimedOut = a.timedOut
	}
	return t, nil
}

// appendError appends an error as the API renders it, and its message as detail, which is all that Lamini's client shows.
func appendError(dst []byte, e *apierr.Error, requestID string) []byte {
	dst = e.AppendJSON(dst, requestID)
	dst = append(dst[:len(dst)-1], `,"detail":`...)
	return append(appendText(dst, e.Message), '}')
}

func appendText(dst []byte, text string) []byte {
	dst, _ = jsontext.AppendQuote(dst, text) // an error only reports invalid UTF-8, which is replaced
	return dst
}
