package quota_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"basegate/budget/quota"
)

func TestTokensAreWrittenAsDigitsOrWithAUnit(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "500000": 500_000, "1_000_000": 1_000_000, "500k": 500_000, "500K": 500_000, "20M": 20_000_000,
		"1.5M": 1_500_000, "1.50k": 1500, "2G": 2_000_000_000, "0.001k": 1, "1_000k": 1_000_000, "007": 7, "1.0M": 1_000_000,
		"9223372036854775807": math.MaxInt64,
	} {
		if got, err := quota.ParseTokens(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "k", "M", ".5M", "-5", "+5", "1e6", "1.5", "1.", "1.0005k", "5__0", "_5", "5_", "5_k", "1_.5M", "1.5_0M", "5 M", "5MM", "5T",
		"9223372036854775808", "9223372036854775807k", "99999999999G", "unbounded", "0x10", "٣",
	} {
		if got, err := quota.ParseTokens(text); !errors.Is(err, quota.ErrNotTokens) {
			t.Errorf("%q: got %d, %v, want ErrNotTokens", text, got, err)
		}
	}
	if c, err := quota.Parse("unbounded"); err != nil || c.Bounded() {
		t.Errorf("unbounded: got %v, %v", c, err)
	}
}

func FuzzParseTokens(f *testing.F) {
	for _, text := range []string{"500k", "1.5M", "1_000_000", "2G", "_", ".", "1.", "k", "0.0000000001G"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := quota.ParseTokens(text)
		if err == nil && (got < 0 || strings.TrimLeft(text, "0123456789_.kKmMgG") != "") {
			t.Errorf("%q: got %d", text, got)
		}
	})
}
