package parity

import (
	"encoding/json"
	"strings"
)

// specialTokens bounds the special tokens that a tokenizer adds to a prompt.
const specialTokens = 4

// prompt is a built-in prompt. Reports name it and never show it.
type prompt struct {
	raw       string // as JSON
	count     int64  // of prompts
	maxTokens int64  // upper bound of the tokens of all of them
}

const (
	shortText   = "The capital of France is"
	otherText   = "Once upon a time"
	escapesText = `"P\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148, \"na\u00efve\" \ud83d\ude42\n\t\\ 🦊\u0001"`
	longText    = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. "
	longRepeats = 8
)

// builtinPrompts returns the prompts by name. ids are the token ids of shortText.
func builtinPrompts(ids []int64) map[string]prompt {
	half := max(1, len(ids)/2)
	return map[string]prompt{
		"text":       textPrompt(shortText),
		"texts":      textPrompt(shortText, otherText),
		"long":       textPrompt(strings.Repeat(longText, longRepeats)),
		"empty":      textPrompt(""),
		"escapes":    {escapesText, 1, int64(len(escapesText)) + specialTokens}, // escapes are longer than what they stand for
		"ids":        {encode(ids), 1, int64(len(ids))},
		"id arrays":  {encode([][]int64{ids, ids[:half]}), 2, int64(len(ids) + half)},
		"unknown id": {"[2147483647]", 1, 1},
	}
}

// textPrompt returns a prompt of one text, or of several as an array. A byte-level tokenizer makes at most one token of a byte.
func textPrompt(texts ...string) prompt {
	p := prompt{raw: encode(texts), count: int64(len(texts))}
	if len(texts) == 1 {
		p.raw = encode(texts[0])
	}
	for _, text := range texts {
		p.maxTokens += int64(len(text)) + specialTokens
	}
	return p
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and integers can always be encoded
	}
	return string(text)
}
