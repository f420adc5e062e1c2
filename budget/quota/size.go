package quota

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// ErrNotTokens is returned for a text that is not a number of tokens.
var ErrNotTokens = errors.New("a number of tokens is written such as 500000, 1_000_000, 500k, 1.5M or 2G")

// tokenUnits are the powers of ten that the units stand for.
var tokenUnits = map[byte]int{'k': 3, 'K': 3, 'm': 6, 'M': 6, 'g': 9, 'G': 9}

// ParseTokens parses a number of tokens, 0 or more: digits, which single underscores may group, and optionally one of
// the units k, M and G. With a unit, it may have decimals if it is a whole number of tokens. The error is ErrNotTokens.
func ParseTokens(text string) (int64, error) {
	zeros := 0
	if text != "" {
		zeros = tokenUnits[text[len(text)-1]]
	}
	if zeros > 0 {
		text = text[:len(text)-1]
	}
	if strings.HasPrefix(text, "_") || strings.HasSuffix(text, "_") || strings.Contains(text, "__") {
		return 0, ErrNotTokens
	}
	whole, decimals, hasPoint := strings.Cut(text, ".")
	decimals = strings.TrimRight(decimals, "0")
	if len(decimals) > zeros || hasPoint && (zeros == 0 || strings.HasSuffix(whole, "_") || strings.Contains(decimals, "_")) {
		return 0, ErrNotTokens
	}
	digits := strings.ReplaceAll(whole, "_", "") + decimals + strings.Repeat("0", zeros-len(decimals))
	tokens, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || whole == "" || tokens > math.MaxInt64 {
		return 0, ErrNotTokens
	}
	return int64(tokens), nil
}

// Parse parses a cap: a number of tokens, or "unbounded". The error is ErrNotTokens.
func Parse(text string) (Cap, error) {
	if text == Unbounded().String() {
		return Unbounded(), nil
	}
	tokens, err := ParseTokens(text)
	if err != nil {
		return Cap{}, err
	}
	return Limit(tokens), nil
}
