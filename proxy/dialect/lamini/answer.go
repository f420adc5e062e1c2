package lamini

import (
	"fmt"

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
	outputs, reasons := make([]byte, 0, len(completion)), []string(nil)
	for i, choice := range choices {
		text, reason := choice.Get("text"), finishStop
		if text.Type != gjson.String {
			return nil, apierr.UntranslatableOutput(fmt.Sprintf("the model server sent no text for prompt %d", i))
		}
		if choice.Get("finish_reason").Str == finishLength {
			reason = finishLength
		}
		if i > 0 {
			outputs = append(outputs, ',')
		}
		var ok bool
		if outputs, ok = a.appendOutput(outputs, text.Str, reason == finishLength); !ok {
			return nil, apierr.UntranslatableOutput(fmt.Sprintf(
				"the output for prompt %d is not a JSON object of output_type, although the model server was asked to constrain it; "+
					"its version may not support structured output", i))
		}
		reasons = append(reasons, reason)
	}
	return a.render(outputs, reasons), nil
}

// appendOutput appends one output: an object if the request has types, and otherwise the text, in an object of its own in
// version 1. A text that was cut off is no object, so it stands as it is.
func (a *answer) appendOutput(dst []byte, text string, cutOff bool) ([]byte, bool) {
	if a.types != nil {
		before := len(dst)
		out, ok := a.types.appendObject(dst, text)
		if ok || !cutOff {
			return out, ok
		}
		return appendText(out[:before], text), true
	}
	if a.reasons {
		return appendText(dst, text), true
	}
	return append(appendText(append(dst, `{"output":`...), text), '}'), true
}

// timedOut returns the response to a request that has timed out: no text for any prompt.
func (a *answer) timedOut() []byte {
	var outputs []byte
	reasons := make([]string, a.prompts)
	for i := range reasons {
		if i > 0 {
			outputs = append(outputs, ',')
		}
		outputs, reasons[i] = append(outputs, `""`...), finishTimeout
	}
	return a.render(outputs, reasons)
}

// render returns the response's body of outputs, which are separated by commas.
func (a *answer) render(outputs []byte, reasons []string) []byte {
	var finish []byte
	for i, reason := range reasons {
		if i > 0 {
			finish = append(finish, ',')
		}
		finish = appendText(finish, reason)
	}
	opening, closing := "", ""
	if a.isList {
		opening, closing = "[", "]"
	}
	if !a.reasons {
		return []byte(opening + string(outputs) + closing)
	}
	return []byte(`{"outputs":` + opening + string(outputs) + closing + `,"finish_reason":` + opening + string(finish) + closing + "}")
}
