package quota_test

import (
	"encoding/json"
	"errors"
	"testing"

	"basegate/budget/quota"
)

func TestExcessComparesEachCapWithItsOwnLimit(t *testing.T) {
	limits := quota.Caps{MonthTotal: quota.Limit(100), DayTotal: quota.Limit(10)}
	for _, c := range []struct {
		caps quota.Caps
		want string
	}{
		{quota.Caps{}, ""},
		{quota.Caps{MonthTotal: quota.Limit(100), DayTotal: quota.Limit(10)}, ""},
		{quota.Caps{MonthInput: quota.Limit(5000), MonthOutput: quota.Limit(5000)}, ""},
		{quota.Caps{DayTotal: quota.Limit(11)}, "daily budget 11 is above 10"},
		{quota.Caps{MonthTotal: quota.Limit(101), DayTotal: quota.Limit(11)}, "monthly budget 101 is above 100"},
	} {
		if got := c.caps.Excess(limits); got != c.want {
			t.Errorf("%s within %s: %q, want %q", c.caps, limits, got, c.want)
		}
	}
}

func TestANegativeCapIsInvalidAndZeroIsNot(t *testing.T) {
	if err := (quota.Caps{MonthTotal: quota.Limit(0)}).Validate(); err != nil {
		t.Errorf("a cap of 0: %v", err)
	}
	if err := (quota.Caps{MonthOutput: quota.Limit(-1)}).Validate(); !errors.Is(err, quota.ErrNegative) {
		t.Errorf("a cap of -1: %v", err)
	}
}

func TestAnUnboundedCapIsNullInSQLAndJSON(t *testing.T) {
	for _, want := range []quota.Cap{quota.Unbounded(), quota.Limit(0), quota.Limit(1 << 40)} {
		column, err := want.Value()
		if err != nil {
			t.Fatal(err)
		}
		var got quota.Cap
		if err := got.Scan(column); err != nil || got != want {
			t.Errorf("%v scanned from %v: %v, %v", want, column, got, err)
		}
	}
	text, err := json.Marshal([]quota.Cap{quota.Unbounded(), quota.Limit(7)})
	if err != nil || string(text) != "[null,7]" {
		t.Errorf("JSON: %s, %v", text, err)
	}
	var c quota.Cap
	if err := c.Scan("7"); err == nil {
		t.Error("a text was scanned as a cap")
	}
}
