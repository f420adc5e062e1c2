package lamini

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	apierr "basegate/errors"
)

// answer makes the response to a request. It holds what that needs of the request.
type answer struct {
	prompts int
	isList  bool        // the prompt was a list, and so is the response
	reasons bool        // version 2: outputs beside finish reasons
	types   outputTypes // nil: the outputs are texts
}

// The values of finish_reason.
const (
	finishStop    = "stop"
	finishLength  = "length"
	finishTimeout = "timeout"
)

// translate returns the response's body for that of a completion.
func (a *answer) translate(completion []byte) ([]byte, error) {
	choices := make([]gjson.Result, a.prompts)
	gjson.GetBytes(completion, "choices").ForEach(func(_, choice gjson.Result) bool {
		if i := choice.Get("index").Int(); i >= 0 && i < int64(a.prompts) {
			choices[i] = choice
		}
		return true
	})
	outputs, reasons := make([]any, a.prompts), make([]string, a.prompts)
	for i, choice := range choices {
		text := choice.Get("text")
		if text.Type != gjson.String {
			return nil, apierr.UntranslatableOutput(fmt.Sprintf("the model server sent no text for prompt %d", i))
		}
		reasons[i] = finishStop
		if choice.Get("finish_reason").Str == finishLength {
			reasons[i] = finishLength
		}
		var ok bool
		if outputs[i], ok = a.output(text.Str, reasons[i] == finishLength); !ok {
			return nil, apierr.UntranslatableOutput(fmt.Sprintf(
				"the output for prompt %d is not a JSON object of output_type, although the model server was asked to constrain it; "+
					"its version may not support structured output", i))
		}
	}
	return a.render(outputs, reasons), nil
}

// output returns one output: an object if the request has types, and otherwise the text, in an object of its own in
// version 1. A text that was cut off is no object, so it stands as it is.
func (a *answer) output(text string, cutOff bool) (output any, ok bool) {
	switch {
	case a.types != nil:
		if output, ok = a.types.object(text); ok || !cutOff {
			return output, ok
		}
	case !a.reasons:
		return map[string]string{"output": text}, true
	}
	return text, true
}

// timedOut returns the response to a request that has timed out: no text for any prompt.
func (a *answer) timedOut() []byte {
	return a.render(slices.Repeat([]any{""}, a.prompts), slices.Repeat([]string{finishTimeout}, a.prompts))
}

// render returns the response's body.
func (a *answer) render(outputs []any, reasons []string) []byte {
	var body, reason any = outputs, reasons
	if !a.isList {
		body, reason = outputs[0], reasons[0]
	}
	if a.reasons {
		body = struct {
			Outputs any `json:"outputs"`
			Reason  any `json:"finish_reason"`
		}{body, reason}
	}
	rendered, err := json.Marshal(body, jsontext.PreserveRawStrings(true), jsontext.AllowInvalidUTF8(true))
	if err != nil { // impossible: invalid UTF-8 is replaced, and the values were parsed
		panic("render the outputs: " + err.Error())
	}
	return rendered
}
