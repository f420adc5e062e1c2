package quota_test

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"basegate/budget/quota"
)

func TestExcessComparesEachCapWithItsOwnLimit(t *testing.T) {
	limits := quota.Caps{quota.MonthTotal: quota.Limit(100), quota.DayTotal: quota.Limit(10)}
	for _, c := range []struct {
		caps quota.Caps
		want string
	}{
		{quota.Caps{}, ""},
		{quota.Caps{quota.MonthTotal: quota.Limit(100), quota.DayTotal: quota.Limit(10)}, ""},
		{quota.Caps{quota.MonthInput: quota.Limit(5000), quota.MonthOutput: quota.Limit(5000)}, ""},
		{quota.Caps{quota.DayTotal: quota.Limit(11)}, "daily budget 11 is above 10"},
		{quota.Caps{quota.MonthTotal: quota.Limit(101), quota.DayTotal: quota.Limit(11)}, "monthly budget 101 is above 100"},
	} {
		if _, got := c.caps.Excess(limits); got != c.want {
			t.Errorf("%s within %s: %q, want %q", c.caps, limits, got, c.want)
		}
	}
}

func TestANegativeCapIsInvalidAndZeroIsNot(t *testing.T) {
	if err := (quota.Caps{quota.MonthTotal: quota.Limit(0)}).Validate(); err != nil {
		t.Errorf("a cap of 0: %v", err)
	}
	if err := (quota.Caps{quota.MonthOutput: quota.Limit(-1)}).Validate(); !errors.Is(err, quota.ErrNegative) {
		t.Errorf("a cap of -1: %v", err)
	}
}

func TestCapsAreAColumnOfJSON(t *testing.T) {
	for want, text := range map[quota.Caps]any{
		{}:                                 nil,
		{quota.MonthTotal: quota.Limit(0)}: `{"month_total":0}`,
		{quota.MonthTotal: quota.Limit(1 << 40), quota.MonthOutput: quota.Limit(math.MaxInt64)}: `{"month_total":1099511627776,"month_output":9223372036854775807}`,
	} {
		column, err := want.Value()
		if err != nil || column != text {
			t.Errorf("%v is %v, %v, want %v", want, column, err, text)
		}
		got := quota.Caps{quota.DayTotal: quota.Limit(1)}
		if err := got.Scan(column); err != nil || got != want {
			t.Errorf("%v scanned from %v: %v, %v", want, column, got, err)
		}
	}
	if _, err := (quota.Caps{quota.DayTotal: quota.Limit(-1)}).Value(); !errors.Is(err, quota.ErrNegative) {
		t.Errorf("a cap of -1 is written: %v", err)
	}
	var c quota.Caps
	for _, column := range []any{`{"day_total":-1}`, `{"hour_total":1}`, `{"day_total":"1"}`, `[]`, `x`, 7} {
		if err := c.Scan(column); err == nil {
			t.Errorf("%v was scanned as caps", column)
		}
	}
}

func TestAnUnboundedCapIsNullInJSON(t *testing.T) {
	text, err := json.Marshal([]quota.Cap{quota.Unbounded(), quota.Limit(7)})
	if err != nil || string(text) != "[null,7]" {
		t.Errorf("JSON: %s, %v", text, err)
	}
}

// The database has caps by these names, commands and lists by the others.
func TestCapsHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for id := range quota.Table {
		k := &quota.Table[id]
		for _, name := range []string{k.Key(), k.Name, k.Field} {
			if name != "" && seen[name] {
				t.Errorf("two caps are called %s", name)
			}
			seen[name] = true
		}
	}
}
