package cli

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"basegate/budget/quota"
	"basegate/identity"
)

// parsedFlag is a flag's value that a function parses. It implements pflag.Value.
type parsedFlag[T any] struct {
	value  T
	kind   string // stands for the value in help
	parse  func(string) (T, error)
	format func(T) string
}

func (f *parsedFlag[T]) Set(text string) error {
	value, err := f.parse(text)
	if err == nil {
		f.value = value
	}
	return err
}

func (f *parsedFlag[T]) String() string { return f.format(f.value) }

func (f *parsedFlag[T]) Type() string { return f.kind }

// The errors of flags.
var (
	errBudget   = errors.New(`want a number of tokens, such as 5_000_000, 500k or 1.5M, or "unbounded"`)
	errTokens   = errors.New("want a number of tokens, such as 8192 or 128k")
	errNotATime = errors.New("want a time such as 2026-11-21T09:30:00Z, or with an offset such as +01:00")
	errNotADate = errors.New("want a day such as 2026-11-21, or a time such as 2026-11-21T09:30:00Z")
	errExpiry   = errors.New(`want a day such as 2027-01-31, a time such as 2027-01-31T09:30:00Z, or "never"`)
	errModels   = errors.New(`want ids of models, separated by commas, or "any"`)
)

// newCapFlag returns the value of a flag that is a number of tokens, or "unbounded".
func newCapFlag(byDefault quota.Cap) *parsedFlag[quota.Cap] {
	return &parsedFlag[quota.Cap]{byDefault, "TOKENS", func(text string) (quota.Cap, error) {
		limit, err := quota.Parse(text)
		if err != nil {
			return limit, errBudget
		}
		return limit, nil
	}, quota.Cap.String}
}

// parseTokens parses a number of tokens.
func parseTokens(text string) (int64, error) {
	tokens, err := quota.ParseTokens(text)
	if err != nil || tokens > math.MaxInt32 {
		return 0, errTokens
	}
	return tokens, nil
}

// newTimeFlag returns the value of a flag that is a time in the kind's form.
func newTimeFlag(kind string, parse func(string) (time.Time, error)) *parsedFlag[time.Time] {
	return &parsedFlag[time.Time]{kind: kind, parse: parse, format: func(at time.Time) string {
		if at.IsZero() { // so that help shows no default
			return ""
		}
		return at.Format(time.RFC3339)
	}}
}

// parseTime parses a time with its offset from UTC.
func parseTime(text string) (time.Time, error) {
	return parseLayouts(text, errNotATime, time.RFC3339, "2006-01-02T15:04Z07:00")
}

// parseDate parses a time, or a day in UTC, which means its start.
func parseDate(text string) (time.Time, error) {
	return parseLayouts(text, errNotADate, time.RFC3339, time.DateOnly)
}

// parseLayouts parses a time by the first layout that fits.
func parseLayouts(text string, none error, layouts ...string) (time.Time, error) {
	for _, layout := range layouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, none
}

// parseEndDate parses a time, or a day in UTC, which means its end.
func parseEndDate(text string) (time.Time, error) {
	at, err := parseDate(text)
	if err == nil && len(text) == len(time.DateOnly) {
		at = at.AddDate(0, 0, 1)
	}
	return at, err
}

// checkListen returns an error unless the value of --listen is an address to listen on.
func checkListen(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("--listen: want host:port such as 127.0.0.1:8080, got %q", address)
	}
	return nil
}

const never = "never"

// parseExpiry parses a date as parseDate does, or "never", which is the zero time.
func parseExpiry(text string) (time.Time, error) {
	if text == never {
		return time.Time{}, nil
	}
	at, err := parseDate(text)
	if err != nil {
		return at, errExpiry
	}
	return at, nil
}

// newModelsFlag returns the value of a flag that is short ids of models, separated by commas, or "any", which is none.
func newModelsFlag() *parsedFlag[[]string] {
	return &parsedFlag[[]string]{nil, "ID,...", func(text string) (ids []string, err error) {
		if text == identity.ModelList("").String() {
			return nil, nil
		}
		for id := range strings.SplitSeq(text, ",") {
			if id = strings.TrimSpace(id); id == "" {
				return nil, errModels
			}
			ids = append(ids, id)
		}
		return ids, nil
	}, func(ids []string) string { return strings.Join(ids, ",") }}
}
